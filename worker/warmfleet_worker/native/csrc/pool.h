/* Threads that share the tiles of one job after the other. */
#ifndef WARMFLEET_POOL_H
#define WARMFLEET_POOL_H

typedef struct wf_pool wf_pool;
/* Computes tile `tile` of a job; `worker` is 0 for the caller of wf_pool_run. */
typedef void (*wf_tile)(void *context, int tile, int worker);

wf_pool *wf_pool_new(int threads);
void wf_pool_free(wf_pool *pool);
/* Compute tiles 0 to tiles - 1, in any order, each once; returns when all are done. */
void wf_pool_run(wf_pool *pool, wf_tile compute, void *context, int tiles);

#endif
