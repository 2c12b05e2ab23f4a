{{/* What the real chart refuses to render. */}}
{{- define "cilium.checked" -}}
{{- if and (ne (int .Values.cluster.id) 0) (eq .Values.cluster.name "default") }}
{{- fail "cluster.name must not be \"default\" when cluster.id is set" }}
{{- end }}
{{- if and .Values.hubble.relay.enabled (not .Values.hubble.enabled) }}
{{- fail "hubble.relay.enabled needs hubble.enabled" }}
{{- end }}
{{- if and .Values.hubble.ui.enabled (not .Values.hubble.relay.enabled) }}
{{- fail "hubble.ui.enabled needs hubble.relay.enabled" }}
{{- end }}
{{- if and .Values.clustermesh.useAPIServer (eq (int .Values.cluster.id) 0) }}
{{- fail "clustermesh.useAPIServer needs cluster.id" }}
{{- end }}
{{- if .Values.clustermesh.config.enabled }}
{{- range .Values.clustermesh.config.clusters }}
{{- if not (or .address .ips) }}
{{- fail (printf "clustermesh.config.clusters: %s has neither address nor ips" .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings of cilium-config, of which pods carry a checksum. */}}
{{- define "cilium.config" -}}
cluster-name: {{ .Values.cluster.name | quote }}
cluster-id: {{ .Values.cluster.id | toString | quote }}
max-connected-clusters: {{ .Values.clustermesh.maxConnectedClusters | toString | quote }}
ipam: {{ .Values.ipam.mode | quote }}
{{- if eq .Values.ipam.mode "cluster-pool" }}
{{- $pools := .Values.ipam.operator.clusterPoolIPv4PodCIDRList }}
cluster-pool-ipv4-cidr: {{ kindIs "string" $pools | ternary $pools (join " " $pools) | quote }}
cluster-pool-ipv4-mask-size: {{ .Values.ipam.operator.clusterPoolIPv4MaskSize | toString | quote }}
{{- end }}
k8s-require-ipv4-pod-cidr: {{ .Values.k8s.requireIPv4PodCIDR | quote }}
enable-ipv4: {{ .Values.ipv4.enabled | quote }}
enable-ipv6: {{ .Values.ipv6.enabled | quote }}
routing-mode: {{ .Values.routingMode | default "tunnel" | quote }}
{{- if ne (.Values.routingMode | default "tunnel") "native" }}
tunnel-protocol: {{ .Values.tunnelProtocol | default "vxlan" | quote }}
{{- end }}
{{- with .Values.ipv4NativeRoutingCIDR }}
ipv4-native-routing-cidr: {{ . | quote }}
{{- end }}
auto-direct-node-routes: {{ .Values.autoDirectNodeRoutes | quote }}
direct-routing-skip-unreachable: {{ .Values.directRoutingSkipUnreachable | quote }}
kube-proxy-replacement: {{ get .Values "kubeProxyReplacement" | default "false" | toString | quote }}
{{- with .Values.MTU }}
mtu: {{ . | toString | quote }}
{{- end }}
{{- with .Values.devices }}
devices: {{ kindIs "string" . | ternary . (join " " .) | quote }}
{{- end }}
{{- if not (kindIs "invalid" .Values.bpf.masquerade) }}
enable-bpf-masquerade: {{ .Values.bpf.masquerade | quote }}
{{- end }}
enable-bgp-control-plane: {{ .Values.bgpControlPlane.enabled | quote }}
bgp-secrets-namespace: {{ .Values.bgpControlPlane.secretsNamespace.name | quote }}
enable-lb-ipam: {{ .Values.enableLBIPAM | quote }}
default-lb-service-ipam: {{ .Values.defaultLBServiceIPAM | quote }}
{{- with .Values.loadBalancer.mode }}
bpf-lb-mode: {{ . | quote }}
{{- end }}
{{- with .Values.loadBalancer.algorithm }}
bpf-lb-algorithm: {{ . | quote }}
{{- end }}
bpf-lb-acceleration: {{ .Values.loadBalancer.acceleration | quote }}
enable-l2-announcements: {{ .Values.l2announcements.enabled | quote }}
{{- if and .Values.encryption.enabled (eq .Values.encryption.type "wireguard") }}
enable-wireguard: "true"
{{- end }}
write-cni-conf-when-ready: "/host/etc/cni/net.d/05-cilium.conflist"
cni-exclusive: {{ .Values.cni.exclusive | quote }}
enable-hubble: {{ .Values.hubble.enabled | quote }}
{{- with .Values.hubble.metrics.enabled }}
hubble-metrics: {{ join " " . | quote }}
{{- end }}
{{- end }}

{{- define "cilium.checksum" -}}
cilium.io/cilium-configmap-checksum: {{ include "cilium.config" . | sha256sum | quote }}
{{- end }}

{{/* Where a pod without kube-proxy or the CNI finds the API server. */}}
{{- define "cilium.api" -}}
{{- if .Values.k8sServiceHost }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.k8sServiceHost | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.k8sServicePort | toString | quote }}
{{- end }}
{{- end }}

{{/* The certificate authority, the same for every leaf of one rendering. */}}
{{- define "cilium.withCA" -}}
{{- if not (hasKey . "ca") }}
{{- $ca := .Values.tls.ca }}
{{- if and $ca.cert $ca.key }}
{{- $_ := set . "ca" (buildCustomCert $ca.cert $ca.key) }}
{{- else }}
{{- $_ := set . "ca" (genCA "Cilium CA" (int $ca.certValidityDuration)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A TLS Secret: (list root name commonName ips dnsNames days). */}}
{{- define "cilium.leaf" -}}
{{- $root := index . 0 }}
{{- include "cilium.withCA" $root }}
{{- $leaf := genSignedCert (index . 2) (index . 3) (index . 4) (int (index . 5)) $root.ca }}
apiVersion: v1
kind: Secret
metadata:
  name: {{ index . 1 }}
  namespace: {{ $root.Release.Namespace }}
type: kubernetes.io/tls
data:
  ca.crt: {{ $root.ca.Cert | b64enc }}
  tls.crt: {{ $leaf.Cert | b64enc }}
  tls.key: {{ $leaf.Key | b64enc }}
{{- end }}
