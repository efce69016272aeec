"""The study of LSTM and CNN: one body learns classification tasks in turn, each with a classifier of its own."""
