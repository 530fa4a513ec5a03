#!/usr/bin/env bash
# Try the chart on a Kubernetes of this machine:  ci/kind.sh [up|down]
# For a person with docker, kind, kubectl, helm and openssl; CI has no Docker and does not run it. Helm must know the repository of
# dask-gateway's chart as "dask" (its documentation says how). It builds both images, makes a cluster with dask-gateway, a ledger
# with TLS and an account, runs a fit as a Job, kills its pod once, and checks that the account was charged once.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly cluster=dpgb space=privacy release=dpgb name=dpgb-dpgb-dask
kube() { kubectl --context "kind-$cluster" --namespace "$space" "$@"; }

if [[ ${1:-up} == down ]]; then
  exec kind delete cluster --name "$cluster"
fi
for tool in docker kind kubectl helm openssl; do
  command -v "$tool" >/dev/null || { echo "$tool is not here; ci/kind.sh needs it" >&2; exit 1; }
done
helm show chart dask/dask-gateway >/dev/null || { echo "helm does not know the repository 'dask': helm repo add dask …" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^appVersion: "\(.*\)"/\1/p' helm/dpgb-dask/Chart.yaml)

docker build --file ci/Dockerfile --tag "dpgb-dask:$version" .
docker build --file ci/Dockerfile.notebook --build-arg "WORKER=dpgb-dask:$version" --tag "dpgb-dask-notebook:$version" .
kind get clusters | grep -qx "$cluster" || kind create cluster --name "$cluster" --wait 120s
kind load docker-image --name "$cluster" "dpgb-dask:$version" "dpgb-dask-notebook:$version"

kubectl --context "kind-$cluster" create namespace "$space" --dry-run=client -o yaml | kubectl --context "kind-$cluster" apply -f -
kubectl --context "kind-$cluster" label --overwrite namespace "$space" pod-security.kubernetes.io/enforce=restricted

# passwords, and a certificate for the ledger's server
for role in owner analyst auditor superuser; do
  kube get secret "ledger-$role" >/dev/null 2>&1 ||
    kube create secret generic "ledger-$role" --from-literal=password="$(openssl rand -hex 24)"
done
if ! kube get secret ledger-tls >/dev/null 2>&1; then
  host=$name-ledger.$space.svc
  openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=ledger's authority" -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
  openssl req -newkey rsa:2048 -nodes -subj "/CN=$host" -keyout "$work/tls.key" -out "$work/tls.csr" 2>/dev/null
  printf 'subjectAltName=DNS:%s\n' "$host" >"$work/names"
  openssl x509 -req -in "$work/tls.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -days 30 \
    -extfile "$work/names" -out "$work/tls.crt" 2>/dev/null
  kube create secret generic ledger-tls --from-file=ca.crt="$work/ca.crt" --from-file=tls.crt="$work/tls.crt" --from-file=tls.key="$work/tls.key"
fi

# made-up data, on a claim that a pod fills
cat >"$work/data.yaml" <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: make-data}
spec:
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: make-data
          image: dpgb-dask:$version
          command: [python, -c]
          args:
            - |
              import numpy, pandas
              rng = numpy.random.default_rng(0)
              people = pandas.DataFrame({"age": rng.integers(17, 91, 20000), "hours": rng.integers(0, 100, 20000)})
              people["income"] = (people.age / 3 + people.hours + rng.normal(0, 20, 20000) > 70).astype(int)
              people.to_csv("/data/people.csv", index=False)
          resources: {requests: {cpu: 100m, memory: 512Mi}, limits: {cpu: "1", memory: 1Gi}}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: data, mountPath: /data}, {name: scratch, mountPath: /scratch}]
      volumes:
        - {name: data, persistentVolumeClaim: {claimName: data}}
        - {name: scratch, emptyDir: {sizeLimit: 100Mi}}
YAML
kube apply -f "$work/data.yaml"
kube wait --for=condition=complete --timeout=300s job/make-data
cat >"$work/schema.json" <<'JSON'
{"version": 1,
 "features": {"age": {"type": "numeric", "low": 17, "high": 90}, "hours": {"type": "numeric", "low": 0, "high": 100}},
 "target": {"name": "income", "type": "binary", "classes": [0, 1]}}
JSON

cat >"$work/values.yaml" <<'YAML'
ledger:
  mode: statefulset
  tls: {existingSecret: ledger-tls}
  secrets: {owner: ledger-owner, analyst: ledger-analyst, auditor: ledger-auditor, superuser: ledger-superuser}
  accounts: [{name: people, epsilon: 3, delta: 1e-6}]
fits:
  people:
    data: /data/people.csv
    dataClaim: data
    epsilon: 1
    delta: 1e-6
    account: people
    resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 2, memory: 2Gi}}
YAML
helm --kube-context "kind-$cluster" upgrade --install "$release" helm/dpgb-dask --namespace "$space" --timeout 10m \
  -f "$work/values.yaml" --set-file fits.people.schema="$work/schema.json"
helm --kube-context "kind-$cluster" test "$release" --namespace "$space"

kube get configmap "$name-for-gateway" -o jsonpath='{.data.values\.yaml}' >"$work/gateway.yaml"
helm --kube-context "kind-$cluster" upgrade --install gateway dask/dask-gateway --namespace gateway --create-namespace --timeout 10m \
  -f "$work/gateway.yaml"

# fits in the ledger, told by its superuser in the server's own pod
fits() {
  # shellcheck disable=SC2016 # the pod's shell expands it
  kube exec "$name-ledger-0" -- sh -c 'PGPASSWORD=$POSTGRES_PASSWORD psql -U postgres -d ledger -Atc "SELECT count(*) FROM dpgb_fits"'
}
before=$(fits)
job=people-$(date +%s)
pods=batch.kubernetes.io/job-name=$job
kube create job --from="cronjob/$name-fit-people" "$job"
for _ in {1..600}; do
  kube logs -l "$pods" --tail=-1 2>/dev/null | grep -q 'is charged' && break
  sleep 0.5
done
kube delete pod -l "$pods" --grace-period=0 --force
kube wait --for=condition=complete --timeout=600s "job/$job"
kube logs -l "$pods" --tail=-1

# as the auditor, in the pod that verifies every night
kube create job --from="cronjob/$name-verify" "verify-$job"
kube wait --for=condition=complete --timeout=300s "job/verify-$job"
kube logs "job/verify-$job"

echo "charged fits: $before before, $(fits) after one Job whose pod was killed. The cluster stays up; end it with: ci/kind.sh down"
[[ $(fits) -eq $((before + 1)) ]]
