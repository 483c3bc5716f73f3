{{/* Reference of an image. Call with (dict "root" $ "image" .Values.images.NAME). */}}
{{- define "warmfleet.image" -}}
{{- $registry := .root.Values.images.registry -}}
{{- if not $registry -}}
{{- fail "\n\nimages.registry is empty, and no images are published for this version. Build and push them with\n\n  make images REGISTRY=registry.example.com/warmfleet PUSH=1\n\n(LOAD=kind instead of PUSH=1 for a kind cluster), or start a cluster on this machine with\n\n  warmfleet devcluster up\n\nBoth write images.values.yaml: give it to helm with -f.\n" -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s/%s@%s" $registry .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s/%s:%s" $registry .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}
