{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "weir.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "weir.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Cluster-wide names say the namespace: two releases of one name must not share rights. */}}
{{- define "weir.clusterName" -}}
{{- if eq .Release.Namespace "kube-system" }}
{{- include "weir.fullname" . }}
{{- else }}
{{- printf "%s-%s" .Release.Namespace (include "weir.fullname" .) }}
{{- end }}
{{- end }}

{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "weir.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: weir
{{ include "weir.selectorLabels" . }}
{{- end }}

{{- define "weir.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* On nodes of another architecture the programs of the image would end at once. */}}
{{- define "weir.nodeSelector" -}}
{{- $asked := dict "kubernetes.io/os" "linux" }}
{{- with .Values.image.architecture }}{{ $_ := set $asked "kubernetes.io/arch" . }}{{ end }}
{{- toYaml (merge (deepCopy .Values.nodeSelector) $asked) }}
{{- end }}

{{- define "weir.meshSecret" -}}
{{- default (printf "%s-mesh" (include "weir.fullname" .)) .Values.mesh.existingSecret }}
{{- end }}

{{/* kube-proxy's own ports are taken where it runs, too. These lie beside the mesh's. */}}
{{- define "weir.healthPort" -}}
{{- .Values.health.port | default (ternary 10296 10256 (ne .Values.serviceProxyName "")) }}
{{- end }}

{{- define "weir.metricsPort" -}}
{{- .Values.metrics.port | default (ternary 10297 10249 (ne .Values.serviceProxyName "")) }}
{{- end }}

{{/* Probes ask at 127.0.0.1, whoever else may. An IPv6 address gets its brackets. */}}
{{- define "weir.healthAddresses" -}}
{{- $port := include "weir.healthPort" . }}
{{- $host := .Values.health.host | default (ternary "127.0.0.1" "*" (ne .Values.serviceProxyName "")) }}
{{- $own := include "weir.sockets" (list $host $port) }}
{{- if has $host (list "*" "0.0.0.0" "127.0.0.1") }}
{{- $own }}
{{- else }}
{{- printf "127.0.0.1:%s,%s" $port $own }}
{{- end }}
{{- end }}

{{- define "weir.metricsAddress" -}}
{{- $host := .Values.metrics.host | default (ternary "*" "127.0.0.1" .Values.monitoring.serviceMonitor.enabled) }}
{{- include "weir.sockets" (list $host (include "weir.metricsPort" .)) }}
{{- end }}

{{/* An address and a port; `*` is all addresses of both families. */}}
{{- define "weir.sockets" -}}
{{- $host := first . }}
{{- $port := last . }}
{{- if eq $host "*" }}
{{- printf "0.0.0.0:%s,[::]:%s" $port $port }}
{{- else }}
{{- printf "%s:%s" (include "weir.bracketed" $host) $port }}
{{- end }}
{{- end }}

{{- define "weir.bracketed" -}}
{{- if contains ":" . }}{{ printf "[%s]" . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Values that each are right and together are not. The schema cannot tell. */}}
{{- define "weir.check" -}}
{{- $ways := list }}
{{- with .Values.apiServer }}
{{- if .host }}{{ $ways = append $ways "apiServer.host" }}{{ end }}
{{- if .kubeconfig.configMap }}{{ $ways = append $ways "apiServer.kubeconfig.configMap" }}{{ end }}
{{- if .viaService }}{{ $ways = append $ways "apiServer.viaService" }}{{ end }}
{{- end }}
{{- if gt (len $ways) 1 }}
{{- fail (printf "%s: agents reach the API server by one of them; leave the others out" (join " and " $ways)) }}
{{- end }}
{{- if and (eq .Values.apiServer.kubeconfig.configMap "kube-proxy") (ne .Release.Namespace "kube-system") }}
{{- fail (printf "apiServer.kubeconfig.configMap=kube-proxy is in kube-system, and pods in %s would wait for it for ever; install the release in kube-system, set apiServer.host, or copy it here by another name" .Release.Namespace) }}
{{- end }}
{{- if and (not $ways) (not .Values.serviceProxyName) }}
{{- fail "apiServer.host is missing: agents must not reach the API server through the Service that they implement. Set it to what `kubectl cluster-info` shows; on k3s apiServer.host=127.0.0.1 and apiServer.port=6444; on kubeadm apiServer.kubeconfig.configMap=kube-proxy" }}
{{- end }}
{{- if eq .Values.services.externalMode "dsr" }}
{{- if not .Values.mesh.enabled }}
{{- fail "services.externalMode=dsr: agents tell each other over the mesh that they take part; set mesh.enabled=true" }}
{{- end }}
{{- if .Values.serviceProxyName }}
{{- fail "services.externalMode=dsr does not go beside another proxy; leave out serviceProxyName or services.externalMode" }}
{{- end }}
{{- if ne .Values.services.masquerade "needed" }}
{{- fail "services.externalMode=dsr keeps clients' addresses and services.masquerade hides them; leave one of the two out" }}
{{- end }}
{{- end }}
{{- if and .Values.monitoring.serviceMonitor.enabled (eq .Values.metrics.host "127.0.0.1") }}
{{- fail "monitoring.serviceMonitor.enabled: nobody but the node itself reaches metrics.host=127.0.0.1; leave metrics.host out, or set it to an address that Prometheus reaches" }}
{{- end }}
{{- end }}
