/* The thread sleeps between steps, and so does who waits for a step: what spins here would take a core from the
 * threads that compute, or from the interpreter that prepares the next step. */
#define _GNU_SOURCE
#include "stepper.h"

#include "engine.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { IDLE, BEGUN, DONE, ENDING };

struct wf_stepper {
    wf_engine *engine;
    wf_job *job;
    int status;
    _Atomic uint32_t state;
    pthread_t thread;
};

static void sleep_while(wf_stepper *stepper, uint32_t state) {
    while (atomic_load_explicit(&stepper->state, memory_order_acquire) == state)
        syscall(SYS_futex, &stepper->state, FUTEX_WAIT_PRIVATE, state, NULL, NULL, 0);
}

static void change(wf_stepper *stepper, uint32_t state) {
    atomic_store_explicit(&stepper->state, state, memory_order_release);
    syscall(SYS_futex, &stepper->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compute(wf_engine *engine, wf_job *job) {
    const wf_step_arguments *step = &job->step;
    int status = wf_step(engine, step);
    if (status == WF_OK && job->logits) status = wf_logits(engine, step->hidden, step->wanted, job->logits);
    if (status == WF_OK && job->sampling)
        status = wf_sample(engine, job->logits, step->wanted, engine->model.vocabulary, job->sampling,
                           job->token_ids);
    return status;
}

static void *serve(void *argument) {
    wf_stepper *stepper = argument;
    for (;;) {
        sleep_while(stepper, IDLE);
        sleep_while(stepper, DONE);
        uint32_t state = atomic_load_explicit(&stepper->state, memory_order_acquire);
        if (state == ENDING) return NULL;
        if (state != BEGUN) continue;
        double began = now_seconds();
        stepper->status = compute(stepper->engine, stepper->job);
        stepper->job->seconds = now_seconds() - began;
        change(stepper, DONE);
    }
}

int wf_stepper_new(wf_engine *engine, wf_stepper **stepper) {
    if (!engine) return WF_BAD_ARGUMENT;
    wf_stepper *made = calloc(1, sizeof *made);
    if (!made) return WF_NO_MEMORY;
    made->engine = engine;
    if (pthread_create(&made->thread, NULL, serve, made)) {
        free(made);
        return WF_NO_THREAD;
    }
    *stepper = made;
    return WF_OK;
}

void wf_stepper_free(wf_stepper *stepper) {
    if (!stepper) return;
    sleep_while(stepper, BEGUN);
    change(stepper, ENDING);
    pthread_join(stepper->thread, NULL);
    free(stepper);
}

int wf_begin(wf_stepper *stepper, wf_job *job) {
    if (!stepper || !job || atomic_load(&stepper->state) != IDLE) return WF_BAD_ARGUMENT;
    if (job->sampling && (!job->logits || !job->token_ids)) return WF_BAD_ARGUMENT;
    stepper->job = job;
    change(stepper, BEGUN);
    return WF_OK;
}

int wf_finish(wf_stepper *stepper) {
    if (!stepper || atomic_load(&stepper->state) == IDLE) return WF_BAD_ARGUMENT;
    sleep_while(stepper, BEGUN);
    int status = stepper->status;
    atomic_store_explicit(&stepper->state, IDLE, memory_order_release);
    return status;
}
