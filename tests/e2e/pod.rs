//! A real vLLM server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sluice_tests::client::Response;

use crate::process::Program;
use crate::wire;

/// A server at a fixed address, running or not.
#[derive(Debug)]
pub(crate) struct Pod {
    /// What the gateway calls it.
    pub(crate) name: &'static str,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    setup: Setup,
    program: Option<Program>,
}

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The Python that has vLLM.
    pub(crate) python: PathBuf,
    /// The folder with the model and its adapters.
    pub(crate) models: PathBuf,
    /// Where servers may keep what they compile.
    pub(crate) cache: PathBuf,
    /// Where the servers' output goes.
    pub(crate) logs: PathBuf,
}

impl Pod {
    /// A server that does not run yet.
    pub(crate) fn new(name: &'static str, address: SocketAddr, setup: &Setup) -> Self {
        Self { name, address, setup: setup.clone(), program: None }
    }

    /// Whether it runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.program.as_mut().is_some_and(|program| program.exited().is_none())
    }

    /// Starts it; it serves a minute or more later.
    pub(crate) fn start(&mut self) {
        self.end();
        let models = &self.setup.models;
        let mut command = Command::new(&self.setup.python);
        command.args(["-m", "vllm.entrypoints.cli.main", "serve"]).arg(models.join("base"));
        command.args(["--served-model-name", "tiny-llama", "--host", "127.0.0.1"]);
        command.args(["--port", &self.address.port().to_string()]);
        command.args(FLAGS);
        command.arg("--lora-modules");
        for adapter in ["sql-lora", "chat-lora"] {
            command.arg(format!("{adapter}={}", models.join(adapter).display()));
        }
        command.envs(ENVIRONMENT);
        // What it compiles and notes stays out of the user's folders.
        let folders = ["TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"];
        command.envs(folders.map(|key| (key, &self.setup.cache)));
        let log = self.setup.logs.join(format!("{}.log", self.name));
        self.program = Some(Program::start(self.name, &command, &log));
    }

    /// Waits until it serves; returns how long that took.
    pub(crate) fn wait_ready(&mut self) -> Duration {
        let started = Instant::now();
        let mut told = 0;
        loop {
            if wire::try_get(self.address, "/health").is_some_and(|page| page.status == 200) {
                return started.elapsed();
            }
            let program = self.program.as_mut().expect("it was started");
            if let Some(status) = program.exited() {
                panic!("{} ended with {status}:\n{}", self.name, program.last_words(30));
            }
            let waited = started.elapsed();
            assert!(
                waited < START_LIMIT,
                "{} does not serve after {waited:.0?}:\n{}",
                self.name,
                program.last_words(30)
            );
            if waited.as_secs() / 20 > told {
                told = waited.as_secs() / 20;
                let doing: String = program.last_words(1).chars().take(120).collect();
                eprintln!("e2e: {} is starting, {:.0?} so far: {doing}", self.name, waited);
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Ends it at once with all its processes.
    pub(crate) fn end(&mut self) {
        if let Some(mut program) = self.program.take() {
            program.end();
        }
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        self.running().signal(Signal::SIGTERM);
    }

    /// Kills the process that computes; the one that listens is left.
    pub(crate) fn kill_engine(&self) {
        let members = self.running().members();
        let (engine, _) = members
            .iter()
            .find(|(_, line)| line.contains("EngineCore"))
            .unwrap_or_else(|| panic!("no engine among {members:?}"));
        let engine = Pid::from_raw((*engine).try_into().expect("process ids are small"));
        kill(engine, Signal::SIGKILL).expect("the engine runs");
    }

    /// Waits until its first process has ended.
    pub(crate) fn wait_exit(&mut self) -> Duration {
        let started = Instant::now();
        while self.is_running() {
            assert!(started.elapsed() < EXIT_LIMIT, "{} still runs", self.name);
            thread::sleep(Duration::from_millis(50));
        }
        started.elapsed()
    }

    /// What it says of itself now: the sum of a metric's samples.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = wire::get(self.address, "/metrics").text();
        wire::samples(&page, name, &[]).unwrap_or_else(|| panic!("{} tells no {name}", self.name))
    }

    /// Requests that its engine has, running and waiting.
    pub(crate) fn load(&self) -> (f64, f64) {
        let page = wire::get(self.address, "/metrics").text();
        let of = |name| wire::samples(&page, name, &[]).unwrap_or(f64::NAN);
        (of("vllm:num_requests_running"), of("vllm:num_requests_waiting"))
    }

    /// Waits until its engine has nothing to do; returns how long that took.
    pub(crate) fn wait_idle(&self, within: Duration) -> Duration {
        let started = Instant::now();
        loop {
            let load = self.load();
            if load == (0.0, 0.0) {
                return started.elapsed();
            }
            assert!(started.elapsed() < within, "{} still has {load:?} requests", self.name);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Loads an adapter under a name.
    pub(crate) fn load_adapter(&self, name: &str, from: &str) -> Response {
        let path = self.setup.models.join(from);
        let body = json!({"lora_name": name, "lora_path": path});
        wire::post(self.address, "/v1/load_lora_adapter", &body)
    }

    /// Forgets an adapter.
    pub(crate) fn unload_adapter(&self, name: &str) -> Response {
        wire::post(self.address, "/v1/unload_lora_adapter", &json!({"lora_name": name}))
    }

    /// Its version.
    pub(crate) fn version(&self) -> Value {
        wire::get(self.address, "/version").json()["version"].clone()
    }

    /// The last lines that it has said.
    pub(crate) fn last_words(&self, lines: usize) -> String {
        self.program.as_ref().map(|program| program.last_words(lines)).unwrap_or_default()
    }

    fn running(&self) -> &Program {
        self.program.as_ref().expect("it was started")
    }
}

/// Small enough that load shows: 8 requests at once, a KV cache of 3,072 tokens. Blocks of 32 are
/// the smallest that the processor backend takes.
const FLAGS: [&str; 21] = [
    "--dtype",
    "float32",
    "--enforce-eager",
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "8",
    "--block-size",
    "32",
    "--num-gpu-blocks-override",
    "96",
    "--enable-lora",
    "--max-loras",
    "2",
    "--max-lora-rank",
    "8",
    "--shutdown-timeout",
    "20",
    "--sse-keep-alive-interval",
    "1",
    "--enable-prompt-tokens-details",
];

/// One thread each, no lookups on the network, adapters that come and go.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("DO_NOT_TRACK", "1"),
    ("HF_HUB_OFFLINE", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("TRANSFORMERS_OFFLINE", "1"),
    ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    // Else it talks to its own parts by the machine's outside address.
    ("VLLM_HOST_IP", "127.0.0.1"),
    ("VLLM_NO_USAGE_STATS", "1"),
];

/// A minute on an idle machine, four on a busy one.
const START_LIMIT: Duration = Duration::from_secs(900);

/// From SIGTERM, beyond the 20 s that it may drain.
const EXIT_LIMIT: Duration = Duration::from_secs(120);
