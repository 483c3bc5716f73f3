"""The state of the cluster as the operator knows it, and the queue of ModelDeployments to reconcile.

`kopf_watches.KopfWatches` feeds `store.Store`; `sync.Sync` compares the store with lists; `queue.WorkQueue`
holds the keys to reconcile, and `key_processor.KeyProcessor` runs them; `entry` has `Key` and `Entry`. May
import `objects`, `cluster` and contracts.
"""
