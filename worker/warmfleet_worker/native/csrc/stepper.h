/* A thread that computes one step at a time while its caller goes on: the two halves of a step. */
#ifndef WARMFLEET_STEPPER_H
#define WARMFLEET_STEPPER_H

#include "warmfleet_step.h"

typedef struct {
    wf_step_arguments step;
    float *logits;                          /* [step.wanted, vocabulary] of the wanted rows, or NULL */
    const wf_sampling *sampling;            /* [step.wanted]: choose a token of each row of logits, or NULL */
    int32_t *token_ids;                     /* [step.wanted] */
    double seconds;                         /* valid after wf_finish: what the step took */
} wf_job;

typedef struct wf_stepper wf_stepper;

/* No other function of `engine` may be called between wf_begin and wf_finish. */
int wf_stepper_new(wf_engine *engine, wf_stepper **stepper);
/* Ends the thread, after the step in flight. */
void wf_stepper_free(wf_stepper *stepper);
/* Hand a step over, one at a time; `job` and all that it points to stay until wf_finish. */
int wf_begin(wf_stepper *stepper, wf_job *job);
/* Wait for it; its status. */
int wf_finish(wf_stepper *stepper);

#endif
