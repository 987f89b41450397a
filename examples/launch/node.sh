#!/usr/bin/env bash
# One machine's part of a run on several: call it on each of them, with the same words after it.
#
#   NODES=2 NODE=0 HEAD=10.0.0.1:29500 bash node.sh pretrain ViT-B/16@imagenet21k --data shards:DIR --out /shared/b16
#   NODES=2 NODE=1 HEAD=10.0.0.1:29500 bash node.sh pretrain ViT-B/16@imagenet21k --data shards:DIR --out /shared/b16
#
# After a stop, on any number of machines: the same with `resume /shared/b16`. All of them see that folder.
set -euo pipefail

NODES="${NODES:?how many machines there are, or the fewest and the most, as 1:4}"
NODE="${NODE:-${SLURM_NODEID:?NODE, the number of this machine from 0}}"
HEAD="${HEAD:?address:port of machine 0, where all meet}"
ADDRESS="${ADDRESS:-${SLURMD_NODENAME:-}}" # how the others reach this machine, where its host name is not enough
RANKS="${RANKS:-gpu}"                      # on this machine: one an accelerator, or a number
RESTARTS="${RESTARTS:-3}"                  # how often all ranks are started again when one has failed
CONF="${CONF:-}"                           # more for --rdzv-conf, such as last_call_timeout=10
JOB="${JOB:-vitlab}"                       # a word for each of several runs that meet at the same place

# Restarted ranks need a new store: in the one that torchrun would share is still what the failed ones said.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Seconds to save in after a SIGTERM; torchrun kills what is left after 30.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${GRACE:-120}"

# exec: a signal to this process is one to torchrun, which passes it on to its ranks once.
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "$NODES" --nproc-per-node "$RANKS" --max-restarts "$RESTARTS" \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD" --rdzv-id "$JOB" --rdzv-conf "is_host=$((NODE == 0))${CONF:+,$CONF}" \
    ${ADDRESS:+--local-addr "$ADDRESS"} \
    -m vitlab "$@"
