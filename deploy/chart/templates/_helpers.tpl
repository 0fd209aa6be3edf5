{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of objects of the whole cluster, which have to differ from those of a release of the same name elsewhere. */}}
{{- define "sluice.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "sluice.fullname" .) -}}
{{- end -}}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "sluice.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "sluice.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "sluice.watched" -}}
{{- .Values.watchNamespace | default .Release.Namespace -}}
{{- end -}}

{{/* Of the Role in another namespace, where a release of the same name elsewhere may have one as well. */}}
{{- define "sluice.roleName" -}}
{{- if eq (include "sluice.watched" .) .Release.Namespace -}}
{{- include "sluice.fullname" . -}}
{{- else -}}
{{- include "sluice.clusterName" . -}}
{{- end -}}
{{- end -}}

{{- define "sluice.configName" -}}
{{- if .Values.config.name -}}
{{- .Values.config.name -}}
{{- else if .Values.config.create -}}
{{- include "sluice.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "sluice.adminAddress" -}}
{{- .Values.admin.address | default (ternary "127.0.0.1" "0.0.0.0" (eq .Values.network "host")) -}}
{{- end -}}

{{- define "sluice.isLoopback" -}}
{{- if has (include "sluice.adminAddress" .) (list "127.0.0.1" "::1") -}}yes{{- end -}}
{{- end -}}

{{/* Where the kubelet and `sluice status` within the container reach the admin pages. */}}
{{- define "sluice.adminHost" -}}
{{- if has (include "sluice.adminAddress" .) (list "127.0.0.1" "0.0.0.0") -}}127.0.0.1{{- else -}}::1{{- end -}}
{{- end -}}

{{/* The spec of the object, if it is made here. */}}
{{- define "sluice.spec" -}}
{{- $listeners := list (dict "name" "http" "port" .Values.ports.http) -}}
{{- $admin := dict "address" (include "sluice.adminAddress" .) "port" .Values.ports.admin -}}
{{- merge (deepCopy .Values.config.spec) (dict "listeners" $listeners "admin" $admin) | toYaml -}}
{{- end -}}

{{- define "sluice.probe" -}}
{{- $values := .context.Values -}}
httpGet:
  {{- /* In the node's own network a pod's address is the node's, where the pages need not be. */}}
  {{- if eq $values.network "host" }}
  host: {{ include "sluice.adminHost" .context | quote }}
  {{- end }}
  path: {{ .path }}
  port: {{ $values.ports.admin }}
timeoutSeconds: 5
{{- end -}}

{{/* What no schema can tell. */}}
{{- define "sluice.check" -}}
{{- $loopback := include "sluice.isLoopback" . -}}
{{- if and $loopback (ne .Values.network "host") -}}
{{- fail (printf "admin.address %s cannot be reached by the kubelet's probes with network: %s; leave it out, or use 0.0.0.0 or ::" (include "sluice.adminAddress" .) .Values.network) -}}
{{- end -}}
{{- if and $loopback .Values.monitoring.serviceMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor needs admin.address 0.0.0.0 or ::, as Prometheus comes from another node" -}}
{{- end -}}
{{- if and .Values.takeover (ne .Values.network "host") -}}
{{- fail "takeover needs network: host, as sockets are handed over within a network; with network: pod the new gateway starts first anyway" -}}
{{- end -}}
{{- if eq (int .Values.ports.http) (int .Values.ports.admin) -}}
{{- fail "ports.http and ports.admin are the same" -}}
{{- end -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) (int .Values.preStopSeconds) -}}
{{- fail "terminationGracePeriodSeconds is shorter than preStopSeconds: every stream would be cut" -}}
{{- end -}}
{{- if and .Values.config.spec (not .Values.config.create) -}}
{{- fail "config.spec is given, but config.create is false: nothing would be made of it" -}}
{{- end -}}
{{- if .Values.config.create -}}
{{- if not .Values.config.spec.schedulers -}}
{{- fail "config.create needs config.spec.schedulers" -}}
{{- end -}}
{{- with .Values.config.spec.listeners -}}
{{- $ports := list -}}
{{- range . -}}{{- $ports = append $ports (int (.port | default 8080)) -}}{{- end -}}
{{- if not (has (int $.Values.ports.http) $ports) -}}
{{- fail (printf "none of config.spec.listeners has ports.http, %d, to which the Service leads" (int $.Values.ports.http)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.config.spec.admin -}}
{{- if and .port (ne (int .port) (int $.Values.ports.admin)) -}}
{{- fail (printf "config.spec.admin.port is %d, and ports.admin, where the probes ask, is %d" (int .port) (int $.Values.ports.admin)) -}}
{{- end -}}
{{- if and .address (ne .address (include "sluice.adminAddress" $)) -}}
{{- fail (printf "config.spec.admin.address is %s, and admin.address, where the probes ask, is %s" .address (include "sluice.adminAddress" $)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
