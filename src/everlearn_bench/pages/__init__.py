"""Add sections of a suite to the page of its grid."""
