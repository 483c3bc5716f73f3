/* A thread takes the next tile of the job when it has finished one, so that a thread that does not run takes
 * none and nothing waits for it. Helpers spin for a short time after each job and then sleep: two processes
 * that both spin on one core would stop each other.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <immintrin.h>

enum { SPINS = 4000, MAX_TILES = (1 << 20) - 1 };

/* A job's ticket: 24 bits of its number, 20 of its tiles, 20 of the next tile. A tile is taken by one
 * compare-and-swap of all three, so a thread that wakes late cannot take a tile of another job. */
#define TICKET(job, tiles, next) ((uint64_t)(job) << 40 | (uint64_t)(tiles) << 20 | (uint64_t)(next))
#define TILES(ticket) ((int)(ticket >> 20 & MAX_TILES))
#define NEXT(ticket) ((int)(ticket & MAX_TILES))

struct wf_pool {
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int done;
    _Alignas(64) _Atomic uint32_t wakes;   /* counts jobs: what sleeping helpers wait on */
    _Atomic int sleeping;
    _Atomic int ending;
    wf_tile compute;
    void *context;
    uint32_t job;
    int helpers;
    pthread_t *threads;
    struct helper { wf_pool *pool; int worker; } *arguments;
};

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void take_tiles(wf_pool *pool, int worker) {
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (NEXT(ticket) < TILES(ticket)) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        /* The job cannot end before this tile is done: its description holds. */
        pool->compute(pool->context, NEXT(ticket), worker);
        atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    }
}

static void *help(void *argument) {
    struct helper *self = argument;
    wf_pool *pool = self->pool;
    uint32_t seen = 0;
    for (;;) {
        int spins = 0;
        while (atomic_load_explicit(&pool->wakes, memory_order_acquire) == seen) {
            if (++spins < SPINS) {
                _mm_pause();
                continue;
            }
            atomic_fetch_add(&pool->sleeping, 1);
            futex(&pool->wakes, FUTEX_WAIT, seen);
            atomic_fetch_sub(&pool->sleeping, 1);
        }
        seen = atomic_load_explicit(&pool->wakes, memory_order_acquire);
        if (atomic_load(&pool->ending)) return NULL;
        take_tiles(pool, self->worker);
    }
}

void wf_pool_run(wf_pool *pool, wf_tile compute, void *context, int tiles) {
    /* A ticket counts a million tiles; a job of more, which no model has, is still computed. */
    if (!pool->helpers || tiles == 1 || tiles > MAX_TILES) {
        for (int tile = 0; tile < tiles; tile++) compute(context, tile, 0);
        return;
    }
    pool->compute = compute;
    pool->context = context;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    pool->job++;
    atomic_store_explicit(&pool->ticket, TICKET(pool->job & 0xffffff, tiles, 0), memory_order_release);
    atomic_fetch_add(&pool->wakes, 1);
    if (atomic_load(&pool->sleeping)) futex(&pool->wakes, FUTEX_WAKE, (uint32_t)pool->helpers);
    take_tiles(pool, 0);
    for (int spins = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < tiles; spins++) {
        _mm_pause();
        /* A helper lost its core in the middle of a tile: let it have this one. */
        if (spins > SPINS) sched_yield();
    }
}

wf_pool *wf_pool_new(int threads) {
    wf_pool *pool = aligned_alloc(64, (sizeof(wf_pool) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (wf_pool){.helpers = 0};
    pool->threads = calloc((size_t)threads, sizeof *pool->threads);
    pool->arguments = calloc((size_t)threads, sizeof *pool->arguments);
    if (!pool->threads || !pool->arguments) {
        wf_pool_free(pool);
        return NULL;
    }
    for (int worker = 1; worker < threads; worker++) {
        pool->arguments[pool->helpers] = (struct helper){pool, worker};
        if (pthread_create(&pool->threads[pool->helpers], NULL, help, &pool->arguments[pool->helpers])) {
            wf_pool_free(pool);
            return NULL;
        }
        pool->helpers++;
    }
    return pool;
}

void wf_pool_free(wf_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->ending, 1);
    atomic_fetch_add(&pool->wakes, 1);
    futex(&pool->wakes, FUTEX_WAKE, (uint32_t)pool->helpers);
    for (int helper = 0; helper < pool->helpers; helper++) pthread_join(pool->threads[helper], NULL);
    free(pool->threads);
    free(pool->arguments);
    free(pool);
}
