"""Define further base models: a small LSTM and a small CNN as transformers models."""

from everlearn_bench.bases.cnn import CNNConfig, CNNForCausalLM
from everlearn_bench.bases.lstm import LSTMConfig, LSTMForCausalLM

__all__ = ["CNNConfig", "CNNForCausalLM", "LSTMConfig", "LSTMForCausalLM"]
