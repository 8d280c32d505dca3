//! As much of a URL as the addresses of services need.

/// The parts of an address like `amqp://user:password@host:5672/vhost`.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// Before `://`.
    pub scheme: String,
    /// Decoded.
    pub user: Option<String>,
    /// Decoded.
    pub password: Option<String>,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// When it is given.
    pub port: Option<u16>,
    /// Behind the first slash, decoded; `None` when there is no slash.
    pub path: Option<String>,
}

/// Never with the password.
impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Url({}://{}:{:?})", self.scheme, self.host, self.port)
    }
}

impl Url {
    /// Reads an address; `None` when it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.trim().split_once("://")?;
        let rest = rest.split(['?', '#']).next()?;
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(decode(path))),
            None => (rest, None),
        };
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (not_empty(user), not_empty(password)),
            None => (None, None),
        };
        let (host, port) = host_and_port(place)?;
        Some(Self { scheme: scheme.to_owned(), user, password, host, port, path })
    }
}

/// `host:port`, `host`, `[::1]:port` or `[::1]`.
pub(crate) fn host_and_port(place: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':'))
        }
        None => match place.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    if host.is_empty() {
        return None;
    }
    let port = port.map(str::parse).transpose().ok()?;
    Some((host.to_owned(), port))
}

fn not_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| decode(text))
}

/// `%2f` is a slash. What is no such code stays as it is.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match code.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The address for people: without a password, and without the parameters that might hold one.
#[must_use]
pub fn shown(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return address.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    match rest.rsplit_once('@') {
        Some((login, place)) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:***@{place}"),
            None => format!("{scheme}://{login}@{place}"),
        },
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_parts() {
        let url = Url::parse("amqp://a%40b:c%3Ad@[::1]:5673/%2f?heartbeat=5").unwrap();
        assert_eq!(url.scheme, "amqp");
        assert_eq!(url.user.as_deref(), Some("a@b"));
        assert_eq!(url.password.as_deref(), Some("c:d"));
        assert_eq!((url.host.as_str(), url.port), ("::1", Some(5673)));
        assert_eq!(url.path.as_deref(), Some("/"));
        assert!(!format!("{url:?}").contains("c:d"));
    }

    #[test]
    fn most_parts_may_be_missing() {
        let url = Url::parse("redis://localhost").unwrap();
        assert_eq!((url.user, url.password, url.path), (None, None, None));
        assert_eq!((url.host.as_str(), url.port), ("localhost", None));
        let url = Url::parse("redis://:secret@localhost:1/").unwrap();
        assert_eq!((url.user, url.password.as_deref()), (None, Some("secret")));
        assert_eq!(url.path.as_deref(), Some(""));
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in ["", "localhost:1", "redis://", "redis://:1", "redis://h:notaport", "amqp://[::1"] {
            assert_eq!(Url::parse(text), None, "{text}");
        }
    }

    #[test]
    fn odd_codes_stay() {
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%2"), "%zz%2");
    }

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(shown("127.0.0.1:9092,127.0.0.2:9092"), "127.0.0.1:9092,127.0.0.2:9092");
        assert_eq!(shown("amqp://u:se@cret@h:1/v"), "amqp://u:***@h:1/v");
        assert_eq!(shown("postgres://u@h/db?password=secret"), "postgres://u@h/db");
    }
}
