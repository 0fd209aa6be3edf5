//! A client of the API server that says JSON as it is.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

/// Requests about one namespace, which is the test's own.
pub(crate) struct Api {
    client: Client,
    /// Its name.
    pub(crate) namespace: String,
}

impl Api {
    /// A new namespace, in a cluster that has the resource definitions.
    pub(crate) async fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(std::env::var_os("KUBECONFIG").is_some(), "run this by: cargo xtask k8s test");
        let client = Client::try_default().await.unwrap();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let api = Self { client, namespace: format!("test-{}-{number}", std::process::id()) };
        let definitions = fs::read_dir(std::env::var("SLUICE_TEST_DEFINITIONS").unwrap()).unwrap();
        let mut files: Vec<PathBuf> = definitions.map(|entry| entry.unwrap().path()).collect();
        files.push(repository().join("deploy/crds/inferencegatewayconfigs.yaml"));
        for file in files {
            let definition = yaml(&fs::read_to_string(file).unwrap());
            api.define(&definition).await;
            if let Some(moved) = of_llm_d(&definition) {
                api.define(&moved).await;
            }
        }
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": api.namespace } });
        let path = format!("/api/v1/namespaces/{}", api.namespace);
        api.apply(&path, &namespace).await.unwrap();
        api
    }

    /// Applies a definition of resources and waits until it holds.
    pub(crate) async fn define(&self, definition: &Value) {
        let name = definition["metadata"]["name"].as_str().unwrap();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        self.apply(&path, definition).await.unwrap();
        for _ in 0..200 {
            let said = self.get(&path).await.unwrap();
            let conditions = said["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is =
                |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
            assert!(!is("NonStructuralSchema"), "{conditions:?}");
            if is("Established") {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("{name} is not established");
    }

    /// The path of an `InferenceGatewayConfig`.
    pub(crate) fn config(&self, name: &str) -> String {
        let namespace = &self.namespace;
        format!(
            "/apis/gateway.sluice.dev/v1alpha1/namespaces/{namespace}/inferencegatewayconfigs/{name}"
        )
    }

    /// Applies an object as `kubectl apply --server-side` does, which knows no unknown field; the answer, or the message.
    pub(crate) async fn apply(&self, path: &str, object: &Value) -> Result<Value, String> {
        let path = format!("{path}?fieldManager=test&force=true&fieldValidation=Strict");
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", object).await
    }

    /// The same as far as to know whether it would be taken.
    pub(crate) async fn dry_run(&self, path: &str, object: &Value) -> Result<Value, String> {
        let path = format!("{path}?dryRun=All&fieldManager=test&force=true&fieldValidation=Strict");
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", object).await
    }

    /// Makes an `InferenceGatewayConfig` as far as to know whether it would be taken.
    pub(crate) async fn try_config(&self, object: &Value) -> Result<Value, String> {
        let path = self.config("");
        let path = format!("{}?dryRun=All&fieldValidation=Strict", path.trim_end_matches('/'));
        self.send(Method::POST, &path, "application/json", object).await
    }

    /// Changes some fields.
    pub(crate) async fn merge(&self, path: &str, change: &Value) -> Result<Value, String> {
        self.send(Method::PATCH, path, "application/merge-patch+json", change).await
    }

    /// Makes an object.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value, String> {
        self.send(Method::POST, path, "application/json", object).await
    }

    /// Deletes an object at once.
    pub(crate) async fn delete(&self, path: &str) {
        let path = format!("{path}?gracePeriodSeconds=0");
        self.send(Method::DELETE, &path, "application/json", &Value::Null).await.unwrap();
    }

    /// The path of a pod.
    pub(crate) fn pod(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{name}", self.namespace)
    }

    /// Makes a pod with the label `app`, which is at this address and ready.
    pub(crate) async fn make_pod(&self, name: &str, app: &str, ip: IpAddr) {
        self.try_pod(name, app, ip).await.unwrap();
    }

    /// The same of an API server that may be away.
    pub(crate) async fn try_pod(&self, name: &str, app: &str, ip: IpAddr) -> Result<(), String> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": app } },
            "spec": { "containers": [{ "name": "engine", "image": "engine" }] },
        });
        self.apply(&self.pod(name), &pod).await?;
        let status = json!({ "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        self.merge(&format!("{}/status", self.pod(name)), &status).await.map(drop)
    }

    /// Says of a pod whether it is ready.
    pub(crate) async fn set_ready(&self, name: &str, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        self.merge(&format!("{}/status", self.pod(name)), &status).await.unwrap();
    }

    /// An object.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, String> {
        self.send(Method::GET, path, "application/json", &Value::Null).await
    }

    /// The table that `kubectl get` shows of one object: its columns' names and its cells.
    pub(crate) async fn table(&self, path: &str) -> Vec<(String, Value)> {
        let request =
            Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table: Value = self.client.request(request.body(Vec::new()).unwrap()).await.unwrap();
        let names = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap().to_owned());
        names.zip(table["rows"][0]["cells"].as_array().unwrap().clone()).collect()
    }

    /// All requests about the namespace so far.
    pub(crate) fn audit(&self) -> Vec<Audited> {
        let text = fs::read_to_string(cluster().join("audit.log")).unwrap();
        // The last line may be on its way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let all = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter_map(|line| Audited::of(&line, &self.namespace)).collect()
    }

    /// How often its pods have been listed.
    pub(crate) fn lists_of_pods(&self) -> usize {
        let audit = self.audit();
        audit.iter().filter(|one| one.verb == "list" && one.resource == "pods").count()
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Value, String> {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        self.client.request(request.body(body).unwrap()).await.map_err(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        })
    }
}

/// A request as the API server's audit log has it.
#[derive(Debug)]
pub(crate) struct Audited {
    /// Who asked, or as whom.
    pub(crate) user: String,
    pub(crate) verb: String,
    /// With its subresource, as in `pods/status`.
    pub(crate) resource: String,
    /// The API group, empty for the oldest one.
    pub(crate) group: String,
    /// The answer.
    pub(crate) code: u64,
}

impl Audited {
    /// Of a line about a namespace: a request that has been answered, or a watch that has begun.
    fn of(line: &Value, namespace: &str) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = &line["objectRef"];
        let (verb, stage) = (text(&line["verb"]), text(&line["stage"]));
        let counted = if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
        if about["namespace"] != namespace || stage != counted {
            return None;
        }
        let user = ["impersonatedUser", "user"].map(|field| text(&line[field]["username"]));
        let user = user.into_iter().find(|user| !user.is_empty())?;
        let sub = about["subresource"].as_str().map(|sub| format!("/{sub}")).unwrap_or_default();
        let resource = format!("{}{sub}", text(&about["resource"]));
        let code = line["responseStatus"]["code"].as_u64()?;
        Some(Self { user, verb, resource, group: text(&about["apiGroup"]), code })
    }
}

/// Where the API server and its store keep what they write.
pub(crate) fn cluster() -> PathBuf {
    std::env::var_os("SLUICE_TEST_CLUSTER").unwrap().into()
}

/// The definition of a resource that has gone to llm-d, with the same fields.
fn of_llm_d(definition: &Value) -> Option<Value> {
    let plural = definition["spec"]["names"]["plural"].as_str()?;
    let has_moved = ["inferencemodelrewrites", "inferenceobjectives"].contains(&plural);
    has_moved.then(|| {
        let mut moved = definition.clone();
        moved["metadata"] = json!({ "name": format!("{plural}.llm-d.ai") });
        moved["spec"]["group"] = "llm-d.ai".into();
        moved
    })
}

/// A YAML text as JSON.
pub(crate) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
