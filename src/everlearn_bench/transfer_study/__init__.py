"""The causal study of many domains: its measures of transfer, on the page of a run and of a grid."""
