//! What can go wrong with a model server, on command.
//!
//! Set at start, by `POST /_fault` (the fields given change, the others stay), by
//! [`super::Server::fault`], or for one request by the header `x-engine-fault` with the same JSON.
//! `DELETE /_fault` heals.
//!
//! What hits the pod as a whole is an order rather than a state: `POST /_refuse`, `POST /_die` and
//! `POST /_kill_engine`, each with `{"for_ms": 500}` or for ever; [`super::Server`] has the like.

use serde::{Deserialize, Serialize};

/// The faults in force. The default is a healthy server.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// How many inference requests get the faults marked (r); unset: all.
    pub times: Option<u32>,

    /// (r) Answer with this status at once: 429, 500, 503, …
    pub status: Option<u16>,
    /// (r) `retry-after` of that answer, in seconds.
    pub retry_after: Option<u32>,
    /// (r) Nothing at all, not even a head.
    pub no_answer: bool,
    /// (r) Say nothing more after so many tokens, and keep the connection; 0 is during prefill. An
    /// answer that is not streamed never comes.
    pub stall_after: Option<u32>,
    /// (r) Cut the connection after so many tokens, without the end of the body.
    pub crash_after: Option<u32>,
    /// (r) End of the connection by FIN instead of RST.
    pub crash_fin: bool,
    /// (r) The engine dies after so many tokens: error event, `[DONE]`, proper end; or a 500.
    pub error_after: Option<u32>,
    /// (r) The whole pod dies after so many tokens: all connections and the port.
    pub exit_after: Option<u32>,

    /// (r) This informational head first: 103, or another 100.
    pub interim: Option<u16>,
    /// (r) Close the connection after the answer, and say so.
    pub close: bool,
    /// (r) Close the connection after the answer, without saying so.
    pub close_silently: bool,
    /// (r) No length and no chunks: the body ends with the connection.
    pub until_close: bool,
    /// (r) Extensions on chunk sizes.
    pub chunk_extensions: bool,
    /// (r) Trailers behind the last chunk.
    pub trailers: bool,
    /// (r) Write in pieces of so many bytes, each on its own.
    pub split: Option<usize>,
    /// (r) Comments on the stream every so many milliseconds while the request has no token.
    pub keep_alive_ms: Option<u64>,

    /// Refuse new requests as vLLM does while it drains; `/health` stays well.
    pub draining: bool,
    /// Status of `/health`.
    pub health: Option<u16>,
    /// `/v1/models` answers with this status.
    pub models: Option<u16>,
    /// What `/metrics` says.
    pub metrics: MetricsFault,
    /// How long `/metrics` takes, in milliseconds.
    pub metrics_delay_ms: u64,
}

/// How `/metrics` lies.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricsFault {
    /// Not at all.
    #[default]
    None,
    /// NaN for every value.
    Nan,
    /// A page of a proxy.
    Html,
    /// Status 500.
    Error,
    /// Nothing.
    Empty,
    /// The same text for ever.
    Stuck,
    /// Half of the text, with its full length promised.
    Cut,
    /// Bytes that are no text.
    Garbage,
    /// No answer.
    Silent,
}

impl Faults {
    /// These faults with the fields of `json` changed.
    ///
    /// # Errors
    /// When it is not a JSON object of these fields.
    pub fn with(&self, json: &[u8]) -> serde_json::Result<Self> {
        let changes: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
        let mut fields = serde_json::to_value(self)?;
        if let Some(fields) = fields.as_object_mut() {
            fields.extend(changes);
        }
        serde_json::from_value(fields)
    }

    /// The faults for a request that comes now; counts it.
    pub fn for_request(&mut self) -> Self {
        match &mut self.times {
            None => self.clone(),
            Some(0) => Self::default(),
            Some(times) => {
                *times -= 1;
                self.clone()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_change_one_by_one() {
        let faults = Faults::default().with(br#"{"status":503,"times":2}"#).unwrap();
        assert_eq!((faults.status, faults.times), (Some(503), Some(2)));
        let faults = faults.with(br#"{"status":null,"metrics":"nan"}"#).unwrap();
        assert_eq!((faults.status, faults.metrics), (None, MetricsFault::Nan));
        assert_eq!(faults.times, Some(2));
        for json in [&b"{\"stats\":1}"[..], b"[]", b"{\"status\":\"x\"}", b"{"] {
            assert!(Faults::default().with(json).is_err());
        }
    }

    #[test]
    fn times_counts_down() {
        let mut faults = Faults { times: Some(2), status: Some(503), ..Faults::default() };
        let seen: Vec<_> = (0..3).map(|_| faults.for_request().status).collect();
        assert_eq!(seen, [Some(503), Some(503), None]);
    }
}
