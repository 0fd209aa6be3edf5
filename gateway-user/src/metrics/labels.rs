//! The values that labels take: every one is a variant here or a name from the configuration, so
//! that nothing a peer sends can add a series.

/// A closed set of label values.
pub trait Label: Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// As it stands in the exposition.
    fn as_str(self) -> &'static str;

    /// Its place in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// One cell for each value of a label, found without hashing.
#[derive(Debug)]
pub(super) struct ByLabel<L, M> {
    cells: Box<[M]>,
    label: std::marker::PhantomData<L>,
}

impl<L: Label, M: Default> Default for ByLabel<L, M> {
    fn default() -> Self {
        let cells = L::ALL.iter().map(|_| M::default()).collect();
        Self { cells, label: std::marker::PhantomData }
    }
}

impl<L: Label, M> ByLabel<L, M> {
    /// The cell of one value. Always there; `Option` only because the compiler cannot know.
    pub(super) fn get(&self, label: L) -> Option<&M> {
        self.cells.get(label.index())
    }

    /// Every value with its cell.
    pub(super) fn iter(&self) -> impl Iterator<Item = (L, &M)> {
        L::ALL.iter().copied().zip(&self.cells)
    }
}

macro_rules! labels {
    ($(
        $(#[$meta:meta])*
        $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )+};
}

labels! {
    /// How a request ended.
    Outcome {
        /// The whole answer was delivered.
        Ok = "ok",
        /// 4xx, from the gateway or the pod.
        ClientError = "client_error",
        /// 5xx from the pod, or an error event in its stream.
        PodError = "pod_error",
        /// The pod's answer broke off.
        Aborted = "aborted",
        /// The client left first.
        ClientGone = "client_gone",
        /// The gateway sent it away: 429 or 503.
        Rejected = "rejected",
        /// The pod was silent for longer than the budget.
        TimedOut = "timed_out",
    }

    /// What a token was to a request.
    TokenKind {
        /// Of the prompt; those that were cached are among them.
        Prompt = "prompt",
        /// Of the prompt, and in the pod's prefix cache.
        Cached = "cached",
        /// Of the answer.
        Generated = "generated",
    }

    /// Why a pool sent a request away.
    Rejection {
        /// Every ready pod takes no more: 429.
        Saturated = "saturated",
        /// No pod is ready: 503.
        NoPod = "no_pod",
        /// Every ready pod was tried and failed: 503.
        Exhausted = "exhausted",
    }

    /// Why a request was refused before it came to a pool.
    Refusal {
        /// No valid HTTP, no body to route by, or a path, method or coding not served: 400, 404, 405, 415, 501, 505.
        BadRequest = "bad_request",
        /// No pool serves the model: 404.
        UnknownModel = "unknown_model",
        /// The head is over its limit: 431.
        HeadTooLarge = "head_too_large",
        /// The body is over its limit: 413.
        BodyTooLarge = "body_too_large",
        /// The client was too slow: 408.
        Slow = "slow",
        /// Memory for request bodies is used up: 503.
        BuffersFull = "buffers_full",
        /// Too many connections.
        TooManyConnections = "too_many_connections",
        /// Too many connections of one address.
        TooManyOfAddress = "too_many_of_address",
        /// No key or token that lets in: 401.
        Unauthorized = "unauthorized",
        /// The key is not for that model: 403.
        Forbidden = "forbidden",
        /// The key or the model has used up its limits: 429.
        Limited = "limited",
        /// A health check of a gateway that is starting, stopping or without pods: 503.
        NotReady = "not_ready",
    }

    /// Which limit of a key or a model was used up.
    Limit {
        /// Requests per minute.
        Requests = "requests",
        /// Tokens per minute.
        Tokens = "tokens",
        /// Requests at once.
        Concurrent = "concurrent",
    }

    /// What says who may send requests, or what pods want.
    AuthSource {
        /// The files with API keys.
        Keys = "keys",
        /// The signing keys of an issuer of tokens.
        KeySet = "key_set",
        /// The file with a pool's key for its pods.
        PodKey = "pod_key",
    }

    /// What carried an answer's body from the pod to the client.
    Path {
        /// The daemon reads and writes.
        Relay = "relay",
        /// The kernel, from the upstream connection to the client's.
        Splice = "splice",
        /// The kernel, from the pod's own socket to the client's.
        Local = "local",
    }

    /// Why that path, and no faster one.
    PathReason {
        /// It is the fastest for where the pod is.
        Best = "best",
        /// The kernel's path to that pod is turned off.
        Off = "off",
        /// The kernel or the rights of the process do not suffice.
        Unfit = "unfit",
        /// The client's connection or the pod's is TLS.
        Tls = "tls",
        /// The client or the pod speaks HTTP/2.
        Http2 = "http2",
        /// The answer is not a stream that was asked for, or was over before the kernel could take it.
        Short = "short",
        /// The answer must be changed on its way.
        Rewritten = "rewritten",
        /// It is no answer any more: the connection was switched to WebSocket.
        Upgraded = "upgraded",
        /// The client reads too slowly.
        SlowClient = "slow_client",
        /// The kernel's tables are full.
        Full = "full",
    }

    /// Whether a prompt was recognised in the cache of the pod that answered it.
    Recognition {
        /// There was one chain of blocks that could be its own.
        Recognised = "recognised",
        /// There was none, as the pod had the prompt already, or there were several.
        Unclear = "unclear",
    }

    /// How a connection came to a worker.
    Arrival {
        /// The kernel steered it.
        SkLookup = "sk_lookup",
        /// An ordinary listener accepted it.
        Userspace = "userspace",
    }

    /// What became of a datagram of the exchange between gateways.
    Datagram {
        /// Sent to a peer.
        Sent = "sent",
        /// It could not be sent.
        Unsent = "unsent",
        /// Heard, and taken in.
        Taken = "taken",
        /// Signed, but the gateway's own, of a pool that it does not have, or older than one before.
        Passed = "passed",
        /// Not signed with the key, or cut.
        Refused = "refused",
        /// Signed, but not readable: of another version.
        Malformed = "malformed",
    }

    /// How a client's TLS handshake went.
    Handshake {
        /// It was done.
        Done = "done",
        /// The client offered nothing that is spoken here, showed no certificate that is trusted, or left.
        Failed = "failed",
        /// It took longer than `limits.headerTimeout`.
        TimedOut = "timed_out",
    }

    /// What became of changed files, or of keys fetched anew.
    Reload {
        /// They are in use.
        Done = "done",
        /// They cannot be used.
        Failed = "failed",
    }

    /// Why a scrape told nothing.
    ScrapeFailure {
        /// No connection.
        Connect = "connect",
        /// No answer in time.
        Timeout = "timeout",
        /// Not 200.
        Status = "status",
        /// Longer than the limit.
        TooLarge = "too_large",
        /// Not an exposition, or values that cannot be.
        Malformed = "malformed",
        /// None of the metrics that the engine should have.
        NoSignals = "no_signals",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_its_own_cell() {
        let cells = ByLabel::<Outcome, std::cell::Cell<u32>>::default();
        for &outcome in Outcome::ALL {
            cells.get(outcome).unwrap().set(outcome.index() as u32 + 1);
        }
        let seen: Vec<_> = cells.iter().map(|(outcome, cell)| (outcome, cell.get())).collect();
        assert_eq!(seen.first(), Some(&(Outcome::Ok, 1)));
        assert_eq!(seen.last(), Some(&(Outcome::TimedOut, 7)));
    }
}
