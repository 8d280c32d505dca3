//! The proxy does what tests of broken networks count on.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

use std::io::ErrorKind;

use einmal_tests::proxy::{Direction, Flow, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A client and a broker, with the proxy between.
struct Pair {
    proxy: Proxy,
    listener: TcpListener,
    client: TcpStream,
    broker: TcpStream,
}

impl Pair {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().to_string()).await.unwrap();
        let (client, broker) = connect(&proxy, &listener).await;
        Self { proxy, listener, client, broker }
    }
}

async fn connect(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    let (broker, _) = listener.accept().await.unwrap();
    (client, broker)
}

async fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// Bytes there, and as many back, so that all before them has gone through.
async fn ping(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"ping").await.unwrap();
    assert_eq!(read(to, 4).await, b"ping");
}

async fn is_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn forwards_both_ways_and_counts() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    pair.broker.write_all(b"and back").await.unwrap();
    assert_eq!(read(&mut pair.client, 8).await, b"and back");
    assert_eq!((pair.proxy.accepted(), pair.proxy.open(), pair.proxy.refused()), (1, 1, 0));

    drop(pair.client);
    // The end passes too, and so do both counts before it.
    assert_eq!(pair.broker.read(&mut [0; 8]).await.unwrap(), 0);
    drop(pair.broker);
    pair.proxy.wait_for_open(0).await;
    assert_eq!(pair.proxy.forwarded(Direction::ToBroker), 4);
    assert_eq!(pair.proxy.forwarded(Direction::ToClient), 8);
}

#[tokio::test]
async fn large_amounts_arrive_whole() {
    let mut pair = Pair::new().await;
    let sent: Vec<u8> = (0..4_000_000u32).map(|number| number.to_le_bytes()[0]).collect();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        pair.client.write_all(&sent).await.unwrap();
        pair.client
    });
    assert!(read(&mut pair.broker, expected.len()).await == expected);
    drop(writer.await.unwrap());
}

#[tokio::test]
async fn a_cut_resets_both_sides_and_lets_new_ones_in() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    pair.proxy.cut();
    is_reset(&mut pair.client).await;
    is_reset(&mut pair.broker).await;
    pair.proxy.wait_for_open(0).await;

    let (mut client, mut broker) = connect(&pair.proxy, &pair.listener).await;
    ping(&mut client, &mut broker).await;
    assert_eq!((pair.proxy.accepted(), pair.proxy.open()), (2, 1));
}

#[tokio::test]
async fn a_cut_ends_a_stalled_connection() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    pair.proxy.stall();
    pair.proxy.cut();
    is_reset(&mut pair.client).await;
    is_reset(&mut pair.broker).await;
}

#[tokio::test]
async fn refuses_new_ones_and_keeps_the_old() {
    let mut pair = Pair::new().await;
    pair.proxy.refuse_new();
    // The system may tell of the reset at any of the two.
    if let Ok(mut refused) = TcpStream::connect(pair.proxy.address()).await {
        is_reset(&mut refused).await;
    }
    assert_eq!((pair.proxy.accepted(), pair.proxy.refused()), (1, 1));
    ping(&mut pair.client, &mut pair.broker).await;

    pair.proxy.down();
    is_reset(&mut pair.client).await;
    pair.proxy.resume();
    let (mut client, mut broker) = connect(&pair.proxy, &pair.listener).await;
    ping(&mut client, &mut broker).await;
}

#[tokio::test]
async fn a_stall_holds_one_direction_back_and_loses_nothing() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    pair.proxy.set(Direction::ToBroker, Flow::Stall);
    pair.client.write_all(b"held").await.unwrap();
    // The other direction goes on: by then the held bytes would have come.
    for _ in 0..10 {
        ping(&mut pair.broker, &mut pair.client).await;
    }
    assert_eq!(pair.broker.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(pair.proxy.forwarded(Direction::ToBroker), 4);

    pair.proxy.resume();
    assert_eq!(read(&mut pair.broker, 4).await, b"held");
}

#[tokio::test]
async fn the_end_of_a_stalled_connection_waits_behind_its_bytes() {
    let mut pair = Pair::new().await;
    pair.proxy.stall();
    pair.client.write_all(b"last words").await.unwrap();
    drop(pair.client);
    pair.proxy.resume();
    let mut all = Vec::new();
    pair.broker.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"last words");
}

#[tokio::test]
async fn swallowed_bytes_never_come() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    pair.proxy.set(Direction::ToClient, Flow::Swallow);
    pair.broker.write_all(b"confirmed").await.unwrap();
    while pair.proxy.swallowed() < 9 {
        tokio::task::yield_now().await;
    }
    // The request still arrives; only the answer is lost.
    ping(&mut pair.client, &mut pair.broker).await;
    pair.proxy.resume();
    pair.broker.write_all(b"later").await.unwrap();
    assert_eq!(read(&mut pair.client, 5).await, b"later");
    assert_eq!(pair.proxy.swallowed(), 9);
}

#[tokio::test]
async fn a_half_close_ends_one_direction_of_what_is_open() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    pair.proxy.half_close(Direction::ToClient);
    assert_eq!(pair.client.read(&mut [0; 8]).await.unwrap(), 0);
    ping(&mut pair.client, &mut pair.broker).await;
    assert_eq!(pair.proxy.open(), 1);

    let (mut client, mut broker) = connect(&pair.proxy, &pair.listener).await;
    ping(&mut broker, &mut client).await;
}

#[tokio::test]
async fn a_broker_that_is_away_resets_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap().to_string()).await.unwrap();
    drop(listener);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    is_reset(&mut client).await;
    proxy.wait_for_open(0).await;
}

#[tokio::test]
async fn a_dropped_proxy_listens_no_more_and_lets_go() {
    let mut pair = Pair::new().await;
    ping(&mut pair.client, &mut pair.broker).await;
    let address = pair.proxy.address();
    drop(pair.proxy);
    // Reset or ended, as the connection's task was met.
    assert!(matches!(pair.client.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}
