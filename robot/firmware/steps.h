/* What the encoders' interrupt (interrupts.S) and the table that it looks up (encoders.c) agree on. */
#ifndef STEPS_H
#define STEPS_H

/* Bits of an entry. */
#define CART_STEP_BIT 0
#define CART_BACK_BIT 1
#define POLE_STEP_BIT 2
#define POLE_BACK_BIT 3
#define SLIP_BIT 4

/* Registers that one instruction reaches: the channels before the edge, in the high half, and whether counts may be missing. */
#define CHANNELS_BEFORE GPIOR0
#define SLIPPED GPIOR1

#endif
