#!/usr/bin/env bash
# A run on several machines under Slurm, over as many jobs as it takes. From the folder that holds examples/:
#
#   sbatch --nodes 4 examples/launch/slurm.sh /shared/b16 pretrain ViT-B/16@imagenet21k --data shards:DIR
#
# The first word is the run's folder, which all machines see; the others begin it. Where it has begun, it is resumed:
# when the time was up and the job is queued again, when Slurm queues it again after a node has failed, and when the
# same sbatch is said again after anything else, also with another number of nodes.
#SBATCH --job-name=vitlab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
# B: this shell gets the signal, 300 seconds before the time is up; USR1, since TERM also comes from scancel.
set -euo pipefail

run="${1:?the folder of the run}"
shift
node="${NODE_SCRIPT:-${SLURM_SUBMIT_DIR:?}/examples/launch/node.sh}" # Slurm runs a copy of this file, from elsewhere

if [[ -f "$run/run.json" ]]; then
    words=(resume "$run")
else
    words=("${@:?a command that begins it}" --out "$run")
fi

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export NODES="$SLURM_JOB_NUM_NODES" JOB="$SLURM_JOB_ID"
export HEAD="${hosts[0]}:${PORT:-$((20000 + SLURM_JOB_ID % 10000))}"

is_over=
trap 'is_over=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1 # to every torchrun, not to this shell

# In the background, because a shell that waits for a command in front of it hears no signals.
srun --ntasks-per-node=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} bash "$node" "${words[@]}" &
step=$!
code=0
wait "$step" || code=$?
if [[ -n "$is_over" ]]; then
    code=0
    wait "$step" || code=$? # the first wait ended with the signal
    if [[ ! -f "$run/result.json" ]]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$code"
