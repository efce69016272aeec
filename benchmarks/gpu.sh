#!/usr/bin/env bash
# Speed and memory on an NVIDIA GPU: benchmarks/gpu.sh FOLDER PEAK_TFLOPS. It should take less than ten minutes, and has not
# been run yet.
#
# FOLDER gets a JSON file for each comparison, with the device and the versions. PEAK_TFLOPS is the device's own peak for
# dense bf16 (A100: 312; H100, H200: 989), of which throughput.py shows the share that a model's operations use.
set -euo pipefail
cd "$(dirname "$0")"
folder=$1 peak=$2 python=${PYTHON:-python}

$python throughput.py --device cuda --comparisons "masked bf16" "causal bf16" --size base --batch 256 --steps 10 --warmup 3 --segments 4 --memory --peak-tflops "$peak" --output "$folder/throughput-125m.json"
$python overhead.py overhead-gpu.yaml --device cuda --methods "sequential,ewc:protect_base=true:samples=16,mas:protect_base=true:samples=16,si,migu,kd,replay:source=general" --steps 10 --warmup 3 --segments 4 --output "$folder/overhead.json"
$python throughput.py --device cuda --comparisons "causal bf16" --size large --batch 64 --steps 8 --warmup 3 --segments 3 --memory --peak-tflops "$peak" --output "$folder/throughput-1b.json"
$python das_step.py --device cuda --precision bf16 --size base --batch 64 --steps 8 --warmup 3 --segments 3 --forms "released way" exact "quarter, both" "mask alone" --output "$folder/das-step.json"
$python throughput.py --device cuda --comparisons "causal bf16" --size base --vocabulary 131072 --batch 64 --steps 8 --warmup 3 --segments 3 --memory --peak-tflops "$peak" --output "$folder/throughput-vocabulary.json"
$python importance_speed.py --device cuda --output "$folder/importance-speed.json"
$python migu_step.py --device cuda --precision bf16 --widths 768 1024 --batch 128 --steps 8 --warmup 3 --segments 3 --output "$folder/migu-step.json"
