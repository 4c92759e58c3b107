/* optim_priv.h - what the files of optim/ share.
 *
 *   optim.c     the table; a row at work on its parameters, in parts
 *   sgd.c       sgd, momentum, lars
 *   adam.c      adam, adamw, adamax, lamb, lion
 *   adagrad.c   adagrad, rmsprop
 *   norm.c      sums of squares
 *   schedule.c  the learning rate
 *
 * The loops: an element needs nothing but its own weight, gradient and slots, and every operation
 * is rounded by itself (-ffp-contract=off; division and square root are exact to the last bit by
 * IEEE 754), so vectors of any width give the same bits. */
#ifndef OPTIM_OPTIM_PRIV_H
#define OPTIM_OPTIM_PRIV_H

#include "base/clones.h"
#include "optim/optim.h"

extern const struct optim_def optim_sgd, optim_momentum, optim_lars;
extern const struct optim_def optim_adam, optim_adamw, optim_adamax, optim_lamb, optim_lion;
extern const struct optim_def optim_adagrad, optim_rmsprop;

#endif
