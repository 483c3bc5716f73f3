/* Each thread begins with a range of tiles of its own, in order, so that what it prefetches is what it reads next;
 * a thread that is done takes tiles from the end of another one's range. A thread that does not run takes none,
 * and nothing waits for it. Helpers spin for a short time after each job and then sleep: two processes that both
 * spin on one core would stop each other.
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

/* A range's ticket: 24 bits of its job's number, 20 of its end, 20 of its next tile. A tile is taken by one
 * compare-and-swap of all three, so a thread that wakes late cannot take a tile that is not there. */
#define TICKET(job, end, next) ((uint64_t)((job) & 0xffffff) << 40 | (uint64_t)(end) << 20 | (uint64_t)(next))
#define END(ticket) ((int)((ticket) >> 20 & MAX_TILES))
#define NEXT(ticket) ((int)((ticket) & MAX_TILES))

struct range {
    _Alignas(64) _Atomic uint64_t ticket;
};

struct wf_pool {
    _Alignas(64) _Atomic int done;
    _Alignas(64) _Atomic uint32_t wakes;   /* counts jobs: what sleeping helpers wait on */
    _Atomic int sleeping;
    _Atomic int ending;
    wf_tile compute;
    void *context;
    uint32_t job;
    int helpers;
    struct range *ranges;                  /* of the caller and each helper */
    pthread_t *threads;
    struct helper { wf_pool *pool; int worker; } *arguments;
};

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Take one tile from the front or the end of a range; -1 if it is empty. */
static int take_tile(struct range *range, int from_end) {
    uint64_t ticket = atomic_load_explicit(&range->ticket, memory_order_acquire);
    while (NEXT(ticket) < END(ticket)) {
        uint64_t taken = from_end ? ticket - ((uint64_t)1 << 20) : ticket + 1;
        if (atomic_compare_exchange_weak_explicit(&range->ticket, &ticket, taken, memory_order_acq_rel,
                                                  memory_order_acquire))
            return from_end ? END(ticket) - 1 : NEXT(ticket);
    }
    return -1;
}

static void take_tiles(wf_pool *pool, int worker) {
    int workers = pool->helpers + 1, tile;
    for (int turn = 0; turn < workers; turn++) {
        struct range *range = &pool->ranges[(worker + turn) % workers];
        while ((tile = take_tile(range, turn > 0)) >= 0) {
            /* The job cannot end before this tile is done: its description holds. */
            pool->compute(pool->context, tile, worker);
            atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
        }
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
    /* A ticket counts a million tiles; a job of more, which no model has, is computed by the caller. */
    if (!pool->helpers || tiles == 1 || tiles > MAX_TILES) {
        for (int tile = 0; tile < tiles; tile++) compute(context, tile, 0);
        return;
    }
    pool->compute = compute;
    pool->context = context;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    pool->job++;
    int workers = pool->helpers + 1;
    for (int worker = 0; worker < workers; worker++) {
        int first = (int)((int64_t)tiles * worker / workers), end = (int)((int64_t)tiles * (worker + 1) / workers);
        atomic_store_explicit(&pool->ranges[worker].ticket, TICKET(pool->job, end, first), memory_order_release);
    }
    atomic_fetch_add(&pool->wakes, 1);
    if (atomic_load(&pool->sleeping)) futex(&pool->wakes, FUTEX_WAKE, (uint32_t)pool->helpers);
    take_tiles(pool, 0);
    for (unsigned spins = 0; atomic_load_explicit(&pool->done, memory_order_acquire) < tiles; spins++) {
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
    pool->ranges = aligned_alloc(64, sizeof(struct range) * (size_t)threads);
    if (!pool->ranges) {
        wf_pool_free(pool);
        return NULL;
    }
    for (int worker = 0; worker < threads; worker++) atomic_init(&pool->ranges[worker].ticket, 0);
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
    free(pool->ranges);
    free(pool->threads);
    free(pool->arguments);
    free(pool);
}
