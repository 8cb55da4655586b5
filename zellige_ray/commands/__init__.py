"""Commands: one file per verb, with `add_arguments(parser)` and `run(args) -> exit code`.

A new verb is a file here and a line in `cli.verbs`. Import inside `run` what is heavy, so that `--help` stays instant.
"""
