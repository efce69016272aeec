"""The pages of diagnostics: tables and figures of what each of them measured."""
