"""One run at work: the stage's trainer, what a stage is made of, which scores are missing, where everything is.

Each file is one side of a run: :mod:`folder` the disk, :mod:`open_run` text, models and methods, :mod:`trainer` the
steps of a stage, :mod:`measurement_plan` and :mod:`scoring` what is measured, :mod:`collect_results` what the results
say, :mod:`interruption` and :mod:`progress` the person in front of it. The loop over them is :mod:`everlearn.learner`.
"""
