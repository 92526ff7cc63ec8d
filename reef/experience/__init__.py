"""What happened: turns, records, reports and sessions, in one SQL database.

The gateway appends through :class:`~reef.experience.writer.Writer`; everything else reads through
:class:`~reef.experience.store.ExperienceStore`. Not here: releases, which keep their own tables beside these.
"""
