// Resource definitions that other projects publish: `cargo xtask k8s`.
module sluice/tests/k8s/crds

go 1.25.0

require sigs.k8s.io/gateway-api-inference-extension v1.5.0
