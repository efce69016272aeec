"""What the page of a suite's grid shows beside that of any grid."""
