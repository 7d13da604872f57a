#!/usr/bin/env bash
# beside_vllm.sh MODEL COMMAND...: runs a command while vLLM serves MODEL at http://localhost:8000/v1 by the name "model", on GPUS (8) of
# this machine, of which TENSOR_PARALLEL (1) hold a copy. Pipelines call it where a step needs a server.
set -euo pipefail
if (exec 3<> /dev/tcp/localhost/8000) 2> /dev/null; then # of which the command would ask another model than MODEL
  echo "beside_vllm.sh: a server is at port 8000 already; end it, or run one step at a time" >&2
  exit 1
fi
vllm serve "$1" --served-model-name model --port 8000 --dtype bfloat16 --tensor-parallel-size "${TENSOR_PARALLEL:-1}" \
  --data-parallel-size $((${GPUS:-8} / ${TENSOR_PARALLEL:-1})) \
  --enable-auto-tool-choice --tool-call-parser hermes >&2 &
process=$!
trap 'kill $process 2> /dev/null || true; wait $process 2> /dev/null || true' EXIT
until curl --silent --fail --output /dev/null http://localhost:8000/v1/models; do
  kill -0 $process 2> /dev/null || { echo "beside_vllm.sh: vllm serve $1 ended" >&2; exit 1; }
  sleep 1
done
"${@:2}"
