//! A TCP proxy between a client and its broker, for networks that break halfway.
//!
//! It can cut connections, refuse new ones, hold bytes back, swallow them, or end one direction only. A stalled
//! or swallowing connection looks alive to both sides, which is what clients handle worst.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the broker.
    ToBroker,
    /// From the broker to the client.
    ToClient,
}

/// What happens to bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// They arrive.
    #[default]
    Forward,
    /// They wait in the proxy and in the sockets' buffers, and arrive once the flow is `Forward` again. Even the
    /// end of a connection waits.
    Stall,
    /// They are read and thrown away. The end of the connection still passes.
    Swallow,
}

/// What new connections meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Door {
    #[default]
    Open,
    /// Accepted, since the port stays ours, and reset at once.
    Refuse,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mode {
    door: Door,
    to_broker: Flow,
    to_client: Flow,
    /// Counted up by each half-close; a connection ends a direction that was closed after it began.
    closed_to_broker: u64,
    closed_to_client: u64,
}

impl Mode {
    fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::ToBroker => self.to_broker,
            Direction::ToClient => self.to_client,
        }
    }

    fn closed(&self, direction: Direction) -> u64 {
        match direction {
            Direction::ToBroker => self.closed_to_broker,
            Direction::ToClient => self.closed_to_client,
        }
    }
}

/// What went through, since the proxy began.
#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    refused: AtomicU64,
    open: watch::Sender<u64>,
    to_broker: AtomicU64,
    to_client: AtomicU64,
    swallowed: AtomicU64,
}

/// The proxy. Dropped, it stops listening and cuts what is open.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    /// Cancelled and replaced by each cut.
    cut: Arc<watch::Sender<CancellationToken>>,
    counters: Arc<Counters>,
    stop: CancellationToken,
}

impl Proxy {
    /// Listens on a free port of loopback, and connects each client to `upstream`, as `host:port`.
    ///
    /// # Errors
    /// When there is no free port.
    pub async fn start(upstream: impl Into<String>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let proxy = Self {
            address: listener.local_addr()?,
            mode: watch::Sender::default(),
            cut: Arc::new(watch::Sender::new(CancellationToken::new())),
            counters: Arc::default(),
            stop: CancellationToken::new(),
        };
        let shared = Shared {
            upstream: upstream.into(),
            mode: proxy.mode.subscribe(),
            cut: proxy.cut.subscribe(),
            counters: Arc::clone(&proxy.counters),
        };
        tokio::spawn(proxy.stop.clone().run_until_cancelled_owned(accept(listener, shared)));
        Ok(proxy)
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every open connection with a reset, on both sides. New ones are let in.
    pub fn cut(&self) {
        self.cut.send_replace(CancellationToken::new()).cancel();
    }

    /// Resets new connections from now on; open ones go on. [`Proxy::resume`] ends it.
    pub fn refuse_new(&self) {
        self.mode.send_modify(|mode| mode.door = Door::Refuse);
    }

    /// Down, as a broker's machine that lost its power: cut, and nobody let in.
    pub fn down(&self) {
        self.refuse_new();
        self.cut();
    }

    /// What happens to bytes of this direction from now on, on open and new connections.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.mode.send_modify(|mode| match direction {
            Direction::ToBroker => mode.to_broker = flow,
            Direction::ToClient => mode.to_client = flow,
        });
    }

    /// Holds back both directions; sockets stay open.
    pub fn stall(&self) {
        self.mode.send_modify(|mode| {
            mode.to_broker = Flow::Stall;
            mode.to_client = Flow::Stall;
        });
    }

    /// Ends this direction of every open connection; the other goes on.
    pub fn half_close(&self, direction: Direction) {
        self.mode.send_modify(|mode| match direction {
            Direction::ToBroker => mode.closed_to_broker += 1,
            Direction::ToClient => mode.closed_to_client += 1,
        });
    }

    /// New connections are let in, and bytes go both ways again. What was half-closed stays so.
    pub fn resume(&self) {
        self.mode.send_modify(|mode| {
            mode.door = Door::Open;
            mode.to_broker = Flow::Forward;
            mode.to_client = Flow::Forward;
        });
    }

    /// Connections that were let in.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counters.accepted.load(Ordering::SeqCst)
    }

    /// Connections that were reset at once.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.counters.refused.load(Ordering::SeqCst)
    }

    /// Connections that are open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        *self.counters.open.borrow()
    }

    /// Returns once so many connections are open.
    pub async fn wait_for_open(&self, count: u64) {
        // It fails only without a sender, and we hold one.
        let _ = self.counters.open.subscribe().wait_for(|open| *open == count).await;
    }

    /// Bytes that were forwarded.
    #[must_use]
    pub fn forwarded(&self, direction: Direction) -> u64 {
        match direction {
            Direction::ToBroker => self.counters.to_broker.load(Ordering::SeqCst),
            Direction::ToClient => self.counters.to_client.load(Ordering::SeqCst),
        }
    }

    /// Bytes that were thrown away.
    #[must_use]
    pub fn swallowed(&self) -> u64 {
        self.counters.swallowed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
        self.cut();
    }
}

struct Shared {
    upstream: String,
    mode: watch::Receiver<Mode>,
    cut: watch::Receiver<CancellationToken>,
    counters: Arc<Counters>,
}

async fn accept(listener: TcpListener, shared: Shared) {
    // Owned here, so that none outlives the proxy.
    let mut connections = JoinSet::new();
    loop {
        // A client that is gone before it was accepted is no reason to stop.
        let Ok((client, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        // Ended ones are of no more interest.
        while connections.try_join_next().is_some() {}
        let mode = *shared.mode.borrow();
        if mode.door == Door::Refuse {
            shared.counters.refused.fetch_add(1, Ordering::SeqCst);
            reset(client);
            continue;
        }
        shared.counters.accepted.fetch_add(1, Ordering::SeqCst);
        let open = Open::new(Arc::clone(&shared.counters));
        let cut = shared.cut.borrow().clone();
        connections.spawn(connection(client, shared.upstream.clone(), shared.mode.clone(), mode, cut, open));
    }
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: Arc<Counters>) -> Self {
        counters.open.send_modify(|open| *open += 1);
        Self(counters)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open = open.saturating_sub(1));
    }
}

async fn connection(
    client: TcpStream,
    upstream: String,
    mode: watch::Receiver<Mode>,
    begun: Mode,
    cut: CancellationToken,
    open: Open,
) {
    let connected = cut.run_until_cancelled(TcpStream::connect(&upstream)).await;
    let Some(Ok(broker)) = connected else {
        // As if the broker had refused.
        return reset(client);
    };
    // Small messages are what brokers speak; the proxy must not add a delay of its own.
    let _ = (client.set_nodelay(true), broker.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let counters = &open.0;
    let both = async {
        let there =
            pump(&mut from_client, &mut to_broker, Direction::ToBroker, mode.clone(), begun, counters);
        let back = pump(&mut from_broker, &mut to_client, Direction::ToClient, mode.clone(), begun, counters);
        tokio::try_join!(there, back)
    };
    let ended = cut.run_until_cancelled(both).await;
    // Two orderly ends need no reset.
    if !matches!(ended, Some(Ok(_))) {
        for whole in [from_client.reunite(to_client), from_broker.reunite(to_broker)].into_iter().flatten() {
            reset(whole);
        }
    }
}

/// Moves bytes of one direction, until they end.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    direction: Direction,
    mut mode: watch::Receiver<Mode>,
    begun: Mode,
    counters: &Counters,
) -> Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    while pass(&mut mode, direction, begun).await? != Pass::Close {
        let read = tokio::select! {
            biased;
            // `pass` has seen the mode, so only a new one ends the read. No byte is lost by that.
            _ = mode.changed() => continue,
            read = from.read(&mut buffer) => read?,
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        // The mode may be another now: these bytes wait too, and the end with them.
        let pass = pass(&mut mode, direction, begun).await?;
        if bytes.is_empty() || pass == Pass::Close {
            break;
        }
        let counter = match (pass, direction) {
            (Pass::Swallow, _) => &counters.swallowed,
            (_, Direction::ToBroker) => &counters.to_broker,
            (_, Direction::ToClient) => &counters.to_client,
        };
        if pass == Pass::Forward {
            to.write_all(bytes).await?;
        }
        counter.fetch_add(u64::try_from(read).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
    to.shutdown().await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    Swallow,
    Close,
}

/// Waits for as long as the direction is stalled.
async fn pass(mode: &mut watch::Receiver<Mode>, direction: Direction, begun: Mode) -> Result<Pass> {
    let closed = |mode: &Mode| mode.closed(direction) != begun.closed(direction);
    let mode = mode
        .wait_for(|mode| closed(mode) || mode.flow(direction) != Flow::Stall)
        .await
        // The proxy is gone.
        .map_err(|_| Error::from(ErrorKind::ConnectionAborted))?;
    Ok(match mode.flow(direction) {
        _ if closed(&mode) => Pass::Close,
        Flow::Swallow => Pass::Swallow,
        Flow::Forward | Flow::Stall => Pass::Forward,
    })
}

/// A close that sends a reset, as a connection to a machine that went away ends.
fn reset(stream: TcpStream) {
    // Without it the close is an orderly one. Tests that count on a reset would see.
    let _ = stream.set_zero_linger();
}
