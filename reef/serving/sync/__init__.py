"""New weights into engines that go on serving.

A sync brings the weights of one release to every engine (``stage``: slow, nothing that serves changes), makes them what answers
(``activate``: a pause of milliseconds, requests under way are kept), proves it (``verify``) and takes it back (``roll_back``). How that is
done depends on what the weights are and where the engine runs: a LoRA is loaded under a name of its own (:mod:`reef.serving.sync.lora`),
full weights go over gloo, NCCL or shared memory into a buffer beside the ones that serve (:mod:`reef.serving.sync.transfer`), or the
engine reads them from the disk (:mod:`reef.serving.sync.disk`); :mod:`reef.serving.sync.choose` decides. :mod:`reef.serving.sync.worker`
is the other end, which vLLM imports in its workers. Training, judging and the chain of releases are not here: the learner calls this.
"""
