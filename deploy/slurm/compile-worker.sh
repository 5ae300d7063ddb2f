#!/bin/bash
# A compile worker on each node of the job, for as long as the job runs; it needs no GPU.
#
#   sbatch --nodes=4 --cpus-per-task=32 --time=02:00:00 compile-worker.sh
#
# Expects on every node: Tilewright with its extras nvrtc and signatures at TILEWRIGHT_HOME, and in TILEWRIGHT_ETC
# (readable by you alone) tilewright.env, the service file of the role `compiler` and compile.key. Set both to folders
# that the nodes share. docs/operating.md, "Compile workers", says what is in these files.
#SBATCH --job-name=tilewright-compile
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=512M
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@60
#SBATCH --output=tilewright-compile-%j.log
set -euo pipefail

home=${TILEWRIGHT_HOME:-/opt/tilewright}
etc=${TILEWRIGHT_ETC:-$HOME/.config/tilewright}
for file in tilewright.env compiler compile.key; do
  [[ -r $etc/$file ]] || { echo "compile-worker: $etc/$file cannot be read" >&2; exit 1; }
done

set -a
# shellcheck source=/dev/null
source "$etc/tilewright.env"
set +a
export PGSERVICEFILE=$etc/compiler
export TILEWRIGHT_COMPILE_KEY=$etc/compile.key
# Of the node: a cache in a shared home would be slower than the compiler.
export TILEWRIGHT_CACHE_DIR=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/tilewright-compile-${SLURM_JOB_ID:-0}

# Slurm's TERM, 60 s before the end and at scancel, goes to the step: each worker gives back what it has not compiled.
exec srun --kill-on-bad-exit=0 "$home/bin/tilewright" compile-worker --processes "${SLURM_CPUS_PER_TASK:-16}"
