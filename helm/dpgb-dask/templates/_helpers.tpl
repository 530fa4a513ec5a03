{{- define "dpgb-dask.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "dpgb-dask.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dpgb-dask.labels" -}}
{{ include "dpgb-dask.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "dpgb-dask.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- /* The pod security standard "restricted" in full; $uid of the image. */}}
{{- define "dpgb-dask.podSecurity" -}}
serviceAccountName: {{ include "dpgb-dask.fullname" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .uid }}
  runAsGroup: {{ .uid }}
  fsGroup: {{ .uid }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "dpgb-dask.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dpgb-dask.ledgerHost" -}}
{{- if eq .Values.ledger.mode "statefulset" -}}
{{ include "dpgb-dask.fullname" . }}-ledger.{{ .Release.Namespace }}.svc
{{- else -}}
{{ required "ledger.host: mode existing needs the host of the server" .Values.ledger.host }}
{{- end -}}
{{- end }}

{{- /* The ledger's address without a password, which libpq takes from PGPASSWORD. */}}
{{- define "dpgb-dask.ledgerUrl" -}}
{{- with .root.Values.ledger -}}
postgresql+psycopg://{{ get .roles $.role }}@
{{- $hosts := splitList "," (include "dpgb-dask.ledgerHost" $.root) -}}
{{- if gt (len $hosts) 1 -}}
{{- /* libpq goes to whichever of them is primary now */ -}}
/{{ .database }}?{{ range $hosts }}host={{ . }}:{{ $.root.Values.ledger.port }}&{{ end }}target_session_attrs=read-write
{{- else -}}
{{ first $hosts }}:{{ .port }}/{{ .database }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "dpgb-dask.secret" -}}
{{- required (printf "ledger.secrets.%s: name a Secret with the key `password`" .role) (get .root.Values.ledger.secrets .role) -}}
{{- end }}

{{- define "dpgb-dask.password" -}}
valueFrom: {secretKeyRef: {name: {{ include "dpgb-dask.secret" . | quote }}, key: password}}
{{- end }}

{{- /* libpq's environment of a role: the password of its Secret, and how the server is verified. */}}
{{- define "dpgb-dask.ledgerEnv" -}}
- name: PGPASSWORD
  {{- include "dpgb-dask.password" . | nindent 2 }}
{{- with .root.Values.ledger.tls }}
- {name: PGSSLMODE, value: {{ .mode | quote }}}
{{- if .existingSecret }}
- {name: PGSSLROOTCERT, value: /tls/ca.crt}
{{- else if hasPrefix "verify" .mode }}
{{- fail "ledger.tls.existingSecret: name a Secret with the key ca.crt, or set ledger.tls.mode to require or disable" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dpgb-dask.ledgerMount" -}}
{{- if .Values.ledger.tls.existingSecret }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "dpgb-dask.ledgerVolume" -}}
{{- with .Values.ledger.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . | quote }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}

{{- /* Folders of a pod that are written: everything else is read-only. */}}
{{- define "dpgb-dask.scratchMounts" -}}
- {name: scratch, mountPath: /scratch}
- {name: cache, mountPath: /cache}
{{- end }}

{{- define "dpgb-dask.scratchVolumes" -}}
- name: scratch
  emptyDir: {sizeLimit: {{ . | quote }}}
- name: cache
  emptyDir: {sizeLimit: 1Gi}
{{- end }}

{{- /* A text as an argument of a container: what YAML or Kubernetes would read into it stands for itself, but $(JOB_NAME). */}}
{{- define "dpgb-dask.argument" -}}
{{ . | replace "$" "$$" | replace "$$(JOB_NAME)" "$(JOB_NAME)" | quote }}
{{- end }}

{{- define "dpgb-dask.clientLabels" -}}
dpgb-dask/ledger-client: "true"
{{- end }}

{{- define "dpgb-dask.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {{ include "dpgb-dask.fullname" .root }}-{{ .name }}
  labels: {{ include "dpgb-dask.labels" .root | nindent 4 }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  accessModes: [{{ .of.accessMode | default "ReadWriteOnce" }}]
  resources: {requests: {storage: {{ .of.storage | quote }}}}
  {{- with .of.storageClass }}
  storageClassName: {{ . | quote }}
  {{- end }}
{{- end }}
