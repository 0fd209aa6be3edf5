//! Two servers and the gateway in front of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_tests::gateway::free_port;

use crate::Options;
use crate::gateway::{self, Gateway};
use crate::pod::{Pod, Setup};

/// What the checks run against.
#[derive(Debug)]
pub(crate) struct Rig {
    /// The servers.
    pub(crate) pods: Vec<Pod>,
    /// The gateway, with one pool of both.
    pub(crate) gateway: Gateway,
    /// The gateway's binary, for checks that start another.
    pub(crate) binary: PathBuf,
    /// The Python with the SDK.
    pub(crate) python: PathBuf,
    /// The folder with the scripts.
    pub(crate) scripts: PathBuf,
    /// Where output goes.
    pub(crate) logs: PathBuf,
    started_in: Duration,
}

impl Rig {
    /// Starts everything, and waits until the gateway knows both pods.
    pub(crate) fn start(options: &Options) -> Self {
        let setup = Setup {
            python: options.python.clone(),
            models: options.models.clone(),
            cache: options.cache.clone(),
            logs: options.logs.clone(),
        };
        let started = Instant::now();
        let mut pods: Vec<_> = ["vllm-a", "vllm-b"]
            .map(|name| Pod::new(name, SocketAddr::from(([127, 0, 0, 1], free_port())), &setup))
            .into();
        eprintln!("e2e: start two vLLM servers, which takes 1 to 4 minutes");
        for pod in &mut pods {
            pod.start();
        }
        for pod in &mut pods {
            pod.wait_ready();
        }
        let started_in = started.elapsed();
        eprintln!("e2e: both serve after {:.0} s", started_in.as_secs_f64());
        let known: Vec<_> = pods.iter().map(|pod| (pod.name, pod.address)).collect();
        let gateway = Gateway::start("gateway", &options.gateway, &known, &options.logs);
        let rig = Self {
            pods,
            gateway,
            binary: options.gateway.clone(),
            python: options.python.clone(),
            scripts: options.scripts.clone(),
            logs: options.logs.clone(),
            started_in,
        };
        rig.settle();
        rig
    }

    /// Starts what an earlier check has ended, and waits until all is as at the start.
    pub(crate) fn revive(&mut self) {
        let dead: Vec<_> =
            self.pods.iter_mut().filter_map(|pod| (!pod.is_running()).then_some(pod)).collect();
        for pod in dead {
            eprintln!("e2e: start {} again", pod.name);
            pod.start();
        }
        for pod in &mut self.pods {
            pod.wait_ready();
        }
        self.settle();
    }

    /// Waits until the gateway knows both pods, and nothing is under way.
    pub(crate) fn settle(&self) -> Duration {
        let took = self.gateway.wait("both pods to be ready and idle", |status| {
            gateway::pods(status).all(|pod| {
                let has = |name: &str| {
                    let names = pod["adapters"].as_array().into_iter().flatten();
                    names.clone().any(|own| own == name)
                };
                pod["ready"] == true
                    && pod["in_flight"] == 0
                    && pod["signals_age_ms"].as_u64().is_some_and(|age| age < 3000)
                    && pod["running"] == 0
                    && pod["waiting"] == 0
                    && has("sql-lora")
                    && has("chat-lora")
            })
        });
        for pod in &self.pods {
            pod.wait_idle(gateway::PATIENCE);
        }
        took
    }

    /// What ran.
    pub(crate) fn versions(&self) -> Value {
        let said = |command: &mut Command| {
            let out = command.output().map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
            out.unwrap_or_default().trim().to_owned()
        };
        let packages = "import importlib.metadata as m, json, platform\n\
                        names = ['torch', 'transformers', 'uvicorn', 'uvloop', 'openai']\n\
                        all = {name: m.version(name) for name in names}\n\
                        print(json.dumps({'python': platform.python_version(), **all}))";
        let packages = said(Command::new(&self.python).args(["-c", packages]));
        let profile = self.binary.parent().and_then(|folder| folder.file_name());
        json!({
            "vllm": self.pods[0].version(),
            "packages": serde_json::from_str::<Value>(&packages).unwrap_or_default(),
            "gateway": said(Command::new(&self.binary).arg("--version")),
            "build": profile.map(|name| name.to_string_lossy()),
            "kernel": said(Command::new("uname").arg("-r")),
            "servers_ready_after_s": self.started_in.as_secs(),
        })
    }

    /// What may explain a failure.
    pub(crate) fn evidence(&self) -> String {
        let mut text = format!("--- the gateway's last lines\n{}", self.gateway.last_words(12));
        for pod in &self.pods {
            text += &format!("\n--- {}'s last lines\n{}", pod.name, pod.last_words(6));
        }
        text
    }

    /// Where to try things by hand.
    pub(crate) fn endpoints(&self) -> String {
        let Self { gateway, pods, .. } = self;
        let mut text = format!(
            "gateway  http://{}/v1\nadmin    http://{}/status\n",
            gateway.address, gateway.admin
        );
        for pod in pods {
            text += &format!("{:8} http://{}/v1\n", pod.name, pod.address);
        }
        text + &format!(
            "curl -N http://{}/v1/chat/completions -H 'content-type: application/json' -d \
             '{{\"model\":\"sql-lora\",\"stream\":true,\"max_tokens\":20,\
             \"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}'",
            gateway.address
        )
    }
}
