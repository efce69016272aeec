"""Run the stages of one recipe: training, scoring, and the files of the run folder.

:mod:`folder` holds the paths of a run, :mod:`open_run` makes its text, models and methods, :mod:`stage_training` and
:mod:`trainer` train one domain, :mod:`measurement_plan` decides what is evaluated, :mod:`scoring` evaluates it on
:mod:`held_out_sets` with :mod:`evaluated_models`, :mod:`collect_results` builds the results, and :mod:`interruption`
and :mod:`progress` handle signals and progress bars. The loop over the domains is :mod:`everlearn.learner`.
"""
