{{/*
Every verb that operator and router have; docs/reference/rbac.md gives the reason for each.
No wildcards, nothing on pods/exec; Secrets by name, except for `create`, which no name can restrict.
*/}}

{{/* The operator, in each namespace with ModelDeployments. */}}
{{- define "warmfleet.rules.operator.models" -}}
- apiGroups: [warmfleet.dev]
  resources: [modeldeployments]
  verbs: [list, watch]
- apiGroups: [warmfleet.dev]
  resources: [modeldeployments/status]
  verbs: [patch]
- apiGroups: [warmfleet.dev]
  resources: [modeldeployments/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [warmfleet-worker-key]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, get, patch]
{{- end -}}

{{/* The operator, in the release's namespace. */}}
{{- define "warmfleet.rules.operator.release" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "warmfleet.leaseName" . }}]
  verbs: [get, update]
{{- if not .Values.rootKeys.existingSecret }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "warmfleet.rootSecretName" . }}]
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}

{{/* The router, in each namespace with ModelDeployments. It only reads. */}}
{{- define "warmfleet.rules.router.models" -}}
- apiGroups: [warmfleet.dev]
  resources: [modeldeployments]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- end -}}
