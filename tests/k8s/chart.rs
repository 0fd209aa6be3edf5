//! The Helm chart: the API server takes all that it renders, and values that cannot be are refused with a reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gateway_user::config;
use serde_json::{Value, json};
use sluice_tests::gateway::binary;

use crate::api::{Api, repository, yaml};

/// What the chart renders for a release of that name in a namespace, with the values of a file of `tests/k8s/chart` and
/// others; or why it does not.
pub(crate) fn render(
    release: &str,
    namespace: &str,
    file: &str,
    values: &[&str],
) -> Result<Vec<Value>, String> {
    let helm = std::env::var_os("SLUICE_TEST_HELM").expect("run this by: cargo xtask k8s test");
    let mut command = Command::new(helm);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, std::env::temp_dir().join("sluice-test-helm"));
    }
    command.args(["template", release]).arg(repository().join("deploy/chart"));
    command.args(["--namespace", namespace, "--values"]).arg(sets().join(file));
    command.args(values.iter().flat_map(|value| ["--set", value]));
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    Ok(objects(&String::from_utf8(output.stdout).unwrap()))
}

/// The objects of a text with several documents.
fn objects(text: &str) -> Vec<Value> {
    let documents =
        text.split("\n---\n").map(|document| yaml(document.trim_start_matches("---\n")));
    documents.filter(|document| !document.is_null()).collect()
}

fn sets() -> PathBuf {
    repository().join("tests/k8s/chart")
}

/// The names of a folder's YAML files.
fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".yaml")).collect()
}

/// Where an object is, of a kind whose plural is the usual one.
pub(crate) fn path(object: &Value, namespace: &str) -> String {
    let (version, kind) =
        (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let root = if version.contains('/') { "apis" } else { "api" };
    let within = match kind {
        "ClusterRole" | "ClusterRoleBinding" => String::new(),
        _ => {
            let own = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
            format!("namespaces/{own}/")
        }
    };
    let (plural, name) = (kind.to_lowercase(), object["metadata"]["name"].as_str().unwrap());
    format!("/{root}/{version}/{within}{plural}s/{name}")
}

/// As much of the Prometheus operator's definition as the chart makes use of, by its documentation.
fn service_monitor() -> Value {
    let text = json!({ "type": "string" });
    let relabeling = json!({ "type": "object", "properties": {
        "sourceLabels": { "type": "array", "items": text }, "targetLabel": text,
    } });
    let endpoint = json!({ "type": "object", "properties": {
        "port": text, "path": text, "interval": text, "honorLabels": { "type": "boolean" },
        "relabelings": { "type": "array", "items": relabeling },
    } });
    let selector = json!({ "type": "object", "properties": {
        "matchLabels": { "type": "object", "additionalProperties": text },
    } });
    let spec = json!({ "type": "object", "required": ["endpoints", "selector"], "properties": {
        "endpoints": { "type": "array", "items": endpoint }, "selector": selector,
    } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "servicemonitors.monitoring.coreos.com" },
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": { "kind": "ServiceMonitor", "plural": "servicemonitors" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": { "type": "object", "required": ["spec"], "properties": { "spec": spec } },
            } }],
        },
    })
}

/// The objects of one kind.
fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// A pod as the DaemonSet among these objects makes it.
fn pod_of(objects: &[Value]) -> Value {
    let template = &of_kind(objects, "DaemonSet")[0]["spec"]["template"];
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "gateway", "labels": template["metadata"]["labels"] },
        "spec": template["spec"],
    })
}

#[tokio::test]
async fn every_object_is_taken() {
    let api = Api::new().await;
    api.define(&service_monitor()).await;
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for set in files(&sets()) {
        // What is named there is not in this cluster.
        let elsewhere = ["watchNamespace=", "priorityClassName="];
        let values = if set == "numbers.yaml" { &elsewhere[..] } else { &[] };
        let objects = render("edge", &api.namespace, &set, values).unwrap();
        for object in &objects {
            let at = path(object, &api.namespace);
            let taken = api.dry_run(&at, object).await;
            assert!(taken.is_ok(), "{set}: {at}: {taken:?}\n{object:#}");
            *kinds.entry(object["kind"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let pod = pod_of(&objects);
        let taken = api.dry_run(&path(&pod, &api.namespace), &pod).await;
        assert!(taken.is_ok(), "{set}: {taken:?}\n{pod:#}");
    }
    for kind in
        ["ServiceMonitor", "PodDisruptionBudget", "ConfigMap", "InferenceGatewayConfig", "Service"]
    {
        assert!(kinds.contains_key(kind), "no set of values has a {kind}: {kinds:?}");
    }
}

/// What is applied without Helm, and the examples.
#[tokio::test]
async fn plain_manifests_and_examples_are_taken() {
    let api = Api::new().await;
    let plain = fs::read_to_string(repository().join("deploy/manifests/sluice.yaml")).unwrap();
    for mut object in objects(&plain) {
        if object["metadata"]["namespace"] == "serving" {
            object["metadata"]["namespace"] = api.namespace.clone().into();
        }
        let at = path(&object, &api.namespace);
        api.dry_run(&at, &object).await.unwrap_or_else(|error| panic!("{at}: {error}"));
    }
    let examples = repository().join("deploy/examples/kubernetes");
    let names = files(&examples);
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let objects = objects(&fs::read_to_string(examples.join(&name)).unwrap());
        for object in &objects {
            let at = path(object, &api.namespace);
            api.dry_run(&at, object).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        // It means what it says: nothing is ignored, and its selectors match the pods beside it.
        let [object] = of_kind(&objects, "InferenceGatewayConfig")[..] else { panic!("{name}") };
        let loaded = config::parse_object(&name, &object["spec"]).unwrap();
        assert_eq!(loaded.notes, [], "{name}");
        for scheduler in object["spec"]["schedulers"].as_array().unwrap() {
            let wanted = &scheduler["modelSelector"]["matchLabels"];
            let fits = |deployment: &&Value| {
                let template = &deployment["spec"]["template"];
                let container = &template["spec"]["containers"][0];
                template["metadata"]["labels"] == *wanted
                    && container["ports"][0]["containerPort"] == scheduler["targetPort"]
            };
            assert!(of_kind(&objects, "Deployment").iter().any(fits), "{name}: {scheduler}");
        }
    }
}

#[tokio::test]
async fn without_the_kernels_part_it_fits_the_strictest_pod_security() {
    let api = Api::new().await;
    let path_of = format!("/api/v1/namespaces/{}", api.namespace);
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    api.merge(&path_of, &json!({ "metadata": { "labels": labels } })).await.unwrap();
    let try_set = async |set: &str| {
        let pod = pod_of(&render("edge", &api.namespace, set, &[]).unwrap());
        api.dry_run(&path(&pod, &api.namespace), &pod).await
    };
    try_set("no-kernel.yaml").await.unwrap();
    let said = try_set("default.yaml").await.unwrap_err();
    for reason in ["host namespaces", "restricted volume types", "BPF", "runAsNonRoot"] {
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let mut differing = Vec::new();
    for (values, expected) in [
        ("network=node", "value must be one of 'host', 'hostPort', 'pod'"),
        ("ports.http=80", "minimum: got 80, want 1,024"),
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("service.port=http", "at '/service/port': got string, want integer"),
        ("kernel.extraCapabilities={CAP_BPF}", "at '/kernel/extraCapabilities/0'"),
        ("seccompProfile.type=Localhost", "missing property 'localhostProfile'"),
        ("podDisruptionBudget.minAvailable=50%", "at '/podDisruptionBudget/minAvailable'"),
        ("maxUnavailable=0", "at '/maxUnavailable'"),
        ("secrets[0].name=tls", "missing property 'mountPath'"),
        ("secrets[0].name=tls,secrets[0].mountPath=tls", "at '/secrets/0/mountPath'"),
        ("logFormat=xml", "value must be one of 'text', 'json'"),
        ("network=pod,admin.address=127.0.0.1", "cannot be reached by the kubelet's probes"),
        ("monitoring.serviceMonitor.enabled=true", "needs admin.address 0.0.0.0 or ::"),
        ("network=pod,takeover=true", "takeover needs network: host"),
        ("ports.admin=8080", "ports.http and ports.admin are the same"),
        ("terminationGracePeriodSeconds=1", "shorter than preStopSeconds"),
        ("config.spec.workers=1", "config.create is false"),
        ("config.create=true", "config.create needs config.spec.schedulers"),
        (
            "config.create=true,config.spec.schedulers[0].name=a,config.spec.listeners[0].port=9000",
            "none of config.spec.listeners has ports.http, 8080",
        ),
        (
            "config.create=true,config.spec.schedulers[0].name=a,config.spec.admin.port=9902",
            "config.spec.admin.port is 9902, and ports.admin, where the probes ask, is 9901",
        ),
        (
            "network=pod,config.create=true,config.spec.schedulers[0].name=a,\
             config.spec.admin.address=127.0.0.1",
            "config.spec.admin.address is 127.0.0.1, and admin.address, where the probes ask, is 0.0.0.0",
        ),
    ] {
        match render("edge", "serving", "default.yaml", &[values]) {
            Ok(_) => differing.push(format!("{values} is taken")),
            Err(said) if said.contains(expected) => {}
            Err(said) => differing.push(format!("{values}: {said}")),
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn a_gateway_starts_before_or_after_the_one_that_it_replaces() {
    for (file, values, surge, ports) in [
        ("default.yaml", "network=host", 0, true),
        ("default.yaml", "network=hostPort", 0, true),
        ("default.yaml", "network=pod", 1, true),
        // Ports of a pod in the node's network would keep a second one away.
        ("takeover.yaml", "network=host", 1, false),
    ] {
        let objects = render("edge", "serving", file, &[values]).unwrap();
        let rolling = &of_kind(&objects, "DaemonSet")[0]["spec"]["updateStrategy"]["rollingUpdate"];
        assert_eq!(*rolling, json!({ "maxSurge": surge, "maxUnavailable": 1 - surge }), "{values}");
        let container = &pod_of(&objects)["spec"]["containers"][0];
        assert_eq!(container["ports"].is_array(), ports, "{file} {values}");
        let takes_over = container["args"].as_array().unwrap().contains(&json!("--takeover"));
        assert_eq!(takes_over, file == "takeover.yaml", "{file}");
    }
}

/// The program knows each argument that it is given by the chart, and by the image without it.
#[test]
fn arguments_are_the_programs() {
    let is_known = |args: &Value| {
        let args = args.as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
        let output = Command::new(binary("sluice")).args(args).arg("--help").output().unwrap();
        output.status.success()
    };
    for set in files(&sets()) {
        let objects = render("edge", "serving", &set, &[]).unwrap();
        let args = pod_of(&objects)["spec"]["containers"][0]["args"].clone();
        assert!(is_known(&args), "{set}: {args}");
    }
    let image = fs::read_to_string(repository().join("deploy/Containerfile")).unwrap();
    let command = image.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    assert!(is_known(&serde_json::from_str(command).unwrap()), "{command}");
    assert!(!is_known(&json!(["run", "--kubernets"])));
}

/// What the image is built from is there, and nothing that the build needs is left out.
#[test]
fn the_image_is_built_from_what_is_there() {
    let image = fs::read_to_string(repository().join("deploy/Containerfile")).unwrap();
    let copied = |line: &str| -> Vec<String> {
        let words = line.strip_prefix("COPY ").unwrap_or_default().split_whitespace();
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        words.pop();
        if line.contains("--from=") { Vec::new() } else { words }
    };
    let copied: Vec<String> = image.lines().flat_map(copied).collect();
    for name in &copied {
        assert!(repository().join(name).exists(), "{name}");
    }
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let (_, members) = manifest.split_once("\nmembers = [").unwrap();
    let members = members.split(']').next().unwrap().split(',');
    for member in members.map(|member| member.trim().trim_matches('"').to_owned()) {
        assert!(copied.contains(&member), "{member} is not copied: {copied:?}");
    }
    for need in ["Cargo.toml", "Cargo.lock", "gateway-ebpf"] {
        assert!(copied.iter().any(|name| name == need), "{need}");
    }
}

/// By the object's name, as far as it is known beforehand: nobody can be kept from making other leases.
#[test]
fn leases_of_others_are_left_alone() {
    let of_leases = |file: &str, values: &[&str]| -> Vec<Value> {
        let objects = render("edge", "serving", file, values).unwrap();
        let rules = of_kind(&objects, "Role")[0]["rules"].as_array().unwrap().clone();
        rules.into_iter().filter(|rule| rule["resources"] == json!(["leases"])).collect()
    };
    let rule = |verbs: Value| json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs });
    assert_eq!(of_leases("default.yaml", &[]), [rule(json!(["get", "create", "update"]))]);
    let mut own = rule(json!(["get", "update"]));
    let made = ["config.create=true", "config.spec.schedulers[0].name=a"];
    for (values, lease) in
        [(&["config.name=east"][..], "sluice-east"), (&made, "sluice-edge-sluice")]
    {
        own["resourceNames"] = json!([lease]);
        assert_eq!(of_leases("default.yaml", values), [rule(json!(["create"])), own.clone()]);
    }
}

#[test]
fn names_that_look_like_numbers_are_texts() {
    fn check(value: &Value, within: &str, differing: &mut Vec<String>) {
        let Some(fields) = value.as_object() else {
            let items = value.as_array().into_iter().flatten();
            return items.for_each(|item| check(item, within, differing));
        };
        for (key, value) in fields {
            let at = format!("{within}.{key}");
            let is_name = key.ends_with("ame") || key == "namespace" || within.ends_with("abels");
            if is_name && (value.is_number() || value.is_boolean() || value.is_null()) {
                differing.push(format!("{at}: {value}"));
            }
            check(value, &at, differing);
        }
    }
    let mut differing = Vec::new();
    let all =
        ["service.enabled=true", "admin.address=0.0.0.0", "monitoring.serviceMonitor.enabled=true"];
    let (own, given) = ("default.yaml", "numbers.yaml");
    for (release, file) in [("1", own), ("1", given), ("2e3", own), ("123", given)] {
        for object in render(release, "2024", file, &all).unwrap() {
            check(&object, object["kind"].as_str().unwrap(), &mut differing);
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

#[test]
fn what_is_watched_may_be_elsewhere() {
    let objects = render("edge", "gateways", "default.yaml", &["watchNamespace=models"]).unwrap();
    let namespace = |kind: &str| of_kind(&objects, kind)[0]["metadata"]["namespace"].clone();
    assert_eq!(["Role", "RoleBinding"].map(namespace), ["models", "models"]);
    assert_eq!(["DaemonSet", "ServiceAccount"].map(namespace), ["gateways", "gateways"]);
    let binding = of_kind(&objects, "RoleBinding")[0];
    assert_eq!(binding["subjects"][0]["namespace"], "gateways");
    // A release of the same name in a third namespace has another Role there.
    let name = |kind: &str| of_kind(&objects, kind)[0]["metadata"]["name"].clone();
    assert_eq!(["Role", "RoleBinding"].map(name), ["gateways-edge-sluice"; 2]);
    assert_eq!(binding["roleRef"]["name"], "gateways-edge-sluice");
    let own = render("edge", "gateways", "default.yaml", &["watchNamespace=gateways"]).unwrap();
    assert_eq!(of_kind(&own, "Role")[0]["metadata"]["name"], "edge-sluice");
    let args = &pod_of(&objects)["spec"]["containers"][0]["args"];
    assert!(args.as_array().unwrap().contains(&json!("--namespace=models")), "{args}");
}

/// With the chart's capabilities the kernel's part works as with all, and none of them is there without need.
#[test]
fn capabilities_are_enough_and_none_too_many() {
    let objects = render("edge", "serving", "default.yaml", &[]).unwrap();
    let context = pod_of(&objects)["spec"]["containers"][0]["securityContext"].clone();
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    let added = context["capabilities"]["add"].as_array().unwrap();
    let added: Vec<String> = added.iter().map(|a| a.as_str().unwrap().to_lowercase()).collect();
    let probe = |bounds: &str| -> Vec<String> {
        let mut command = Command::new("setpriv");
        command.args(["--no-new-privs", "--inh-caps=-all"]).arg(format!("--bounding-set={bounds}"));
        let output = command.arg(binary("sluice")).args(["probe", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let features: Value = serde_json::from_slice(&output.stdout).unwrap();
        let works = features.as_array().unwrap().iter().filter(|f| f["available"] == true);
        works.map(|feature| feature["name"].as_str().unwrap().to_owned()).collect()
    };
    let only = |capabilities: &[&String]| {
        let plus: String = capabilities.iter().map(|c| format!(",+{c}")).collect();
        probe(&format!("-all{plus}"))
    };
    let all = probe("+all");
    assert!(all.contains(&"local".to_owned()), "this host's kernel carries nothing: {all:?}");
    assert_eq!(only(&added.iter().collect::<Vec<_>>()), all);
    for left_out in &added {
        let others: Vec<&String> = added.iter().filter(|other| *other != left_out).collect();
        assert_ne!(only(&others), all, "{left_out} is not needed");
    }
}
