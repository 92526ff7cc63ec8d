"""Methods that turn experience into candidates, one package each. A recipe is a plugin: see `reef.learner.recipe:Recipe`."""
