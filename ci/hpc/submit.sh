#!/usr/bin/env bash
#SBATCH --job-name=dpgb-fit
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=2G
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#
# One private fit on Slurm: a Dask scheduler, a worker for every task, and `dpgb-dask fit` beside them, in one job.
#
#   export DPGB_LEDGER=postgresql+psycopg://me@host/budget
#   sbatch submit.sh people.parquet --schema people.schema.json --epsilon 1 --delta 1e-6 --account people --out model.json
#
# What follows the script's name goes to `dpgb-dask fit`. Files lie on a disk that all nodes see, and dpgb-dask is in PATH
# (activate its environment before sbatch, which takes PATH along). A job that is requeued, by Slurm or by itself two
# minutes before its time limit, goes on with the fit that it had begun: one charge. DPGB_INTERFACE names the network
# between the nodes, such as ib0, if Dask should not choose.
set -euo pipefail
umask 077 # the folder below holds a key
ledger=${DPGB_LEDGER:?"is not set. Export the ledger's address: a PostgreSQL server's (its password in ~/.pgpass), as\
 SQLite is refused on the network file systems that nodes share; sqlite:////path/budget.db only on a disk of one node"}
run=$SLURM_SUBMIT_DIR/dpgb-$SLURM_JOB_ID # the same after a requeue
mkdir -p "$run"
chmod 700 "$run" # fails if another user has made it
touch "$run/fit.log"

# Others use these nodes and their network: a key of this job, without which nobody joins or reads along.
python3 - "$run" <<'PY'
import sys
from pathlib import Path
from distributed.security import Security
made = Security.temporary()
Path(sys.argv[1], "cert.pem").write_text(made.tls_ca_file)
Path(sys.argv[1], "key.pem").write_text(made.tls_client_key)
PY
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=true DASK_DISTRIBUTED__COMM__TLS__CA_FILE="$run/cert.pem"
for role in SCHEDULER WORKER CLIENT; do
  export "DASK_DISTRIBUTED__COMM__TLS__${role}__CERT=$run/cert.pem" "DASK_DISTRIBUTED__COMM__TLS__${role}__KEY=$run/key.pem"
done

network=(${DPGB_INTERFACE:+--interface "$DPGB_INTERFACE"})
rm -f "$run/scheduler.json" # of a run before a requeue
dask scheduler --protocol tls --port 0 --no-dashboard --dashboard-address 127.0.0.1:0 `# its pages know no passwords` \
  --scheduler-file "$run/scheduler.json" "${network[@]}" &
scheduler=$!
trap 'kill "$scheduler" 2>/dev/null' EXIT
until [[ -s $run/scheduler.json ]]; do
  kill -0 "$scheduler" # else it has failed, and said why
  sleep 0.2
done
# since Slurm 22.05 a step does not take --cpus-per-task from its job: where Slurm binds tasks, all threads had one core
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" dask worker --scheduler-file "$run/scheduler.json" --protocol tls \
  --nthreads "$SLURM_CPUS_PER_TASK" --memory-limit "$((SLURM_MEM_PER_CPU * SLURM_CPUS_PER_TASK))MiB" --local-directory "${TMPDIR:-/tmp}" \
  --no-dashboard --dashboard-address 127.0.0.1:0 --death-timeout 120 "${network[@]}" &

# The fit says its number once it is charged, before it reads a row.
begun=$(sed -n 's/.* --resume \([^ ]*\) goes on.*/\1/p' "$run/fit.log" | tail -n 1)
dpgb-dask fit "$@" --ledger "$ledger" --scheduler "$run/scheduler.json" ${begun:+--resume "$begun" --overwrite} \
  2> >(tee -a "$run/fit.log" >&2) &
fit=$!
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
code=0
wait "$fit" || code=$?
while kill -0 "$fit" 2>/dev/null; do # the wait ended by the signal: Slurm ends the job now
  code=0
  wait "$fit" || code=$?
done
[[ $code -ne 0 ]] || rm -rf "$run"
exit "$code"
