{{/* Egress to the cluster's DNS. */}}
{{- define "warmfleet.egress.dns" -}}
# DNS.
- ports:
    {{- range .Values.networkPolicies.dns.ports }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicies.dns.peers }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Egress to the API server and to DNS. */}}
{{- define "warmfleet.egress.cluster" -}}
# The API server.
- ports:
    {{- range .Values.networkPolicies.apiServer.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicies.apiServer.cidrs }}
  to:
    {{- range . }}
    - ipBlock:
        cidr: {{ . }}
    {{- end }}
  {{- end }}
{{ include "warmfleet.egress.dns" . }}
{{- end -}}

{{/* Egress to the hub, of which the operator asks commits of branches and tags: as for the pods that fetch. */}}
{{- define "warmfleet.egress.hub" -}}
{{- with .Values.modelFetch -}}
{{- if and .resolveRevisions (not .offline) -}}
{{- $ports := list 443 -}}
{{- range $url := list .hubEndpoint .httpProxy .httpsProxy -}}
{{- if $url -}}
{{- $parts := urlParse (ternary $url (printf "http://%s" $url) (contains "://" $url)) -}}
{{- $port := regexFind ":[0-9]+$" $parts.host | trimPrefix ":" -}}
{{- $ports = append $ports (int (default (ternary "443" "80" (eq $parts.scheme "https")) $port)) -}}
{{- end -}}
{{- end -}}
# The model hub.
- ports:
    {{- range $ports | uniq }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  to:
    - namespaceSelector: {}
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fd00:ec2::254/128", "fe80::/10"]}
{{- end -}}
{{- end -}}
{{- end -}}
