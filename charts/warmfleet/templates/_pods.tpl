{{/* Security context of a pod: restricted pod security. Call with the component's values. */}}
{{- define "warmfleet.podSecurityContext" -}}
{{- $restricted := dict
  "runAsNonRoot" true
  "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $restricted .podSecurityContext) -}}
{{- end -}}

{{/* Security context of a container, as above. */}}
{{- define "warmfleet.containerSecurityContext" -}}
{{- $restricted := dict
  "allowPrivilegeEscalation" false
  "readOnlyRootFilesystem" true
  "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $restricted .containerSecurityContext) -}}
{{- end -}}

{{/* Where pods are placed. Call with (dict "root" $ "component" NAME "values" MAP). */}}
{{- define "warmfleet.placement" -}}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "warmfleet.selectorLabels" . | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Resources without empty parts. Call with the component's values. */}}
{{- define "warmfleet.resources" -}}
{{- $given := dict -}}
{{- range $part, $amounts := .resources -}}
{{- if $amounts -}}{{- $_ := set $given $part $amounts -}}{{- end -}}
{{- end -}}
{{- toJson $given -}}
{{- end -}}

{{/* A pod's name, namespace and uid, from the downward API. */}}
{{- define "warmfleet.podEnvironment" -}}
- name: WARMFLEET_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: WARMFLEET_POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: WARMFLEET_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: HOME
  value: /tmp
{{- end -}}

