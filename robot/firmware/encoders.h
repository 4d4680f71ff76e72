/* Two quadrature encoders, every edge of both channels counted. */
#ifndef ENCODERS_H
#define ENCODERS_H

#include <stdbool.h>
#include <stdint.h>

/* Counters as the interrupt leaves them: 16 bits, which wrap. */
typedef struct {
    uint16_t cart;
    uint16_t pole;
} encoder_counts_t;

/* Call once, with interrupts off. */
void encoders_start(void);

/* Call with interrupts off: both counters of one moment. */
encoder_counts_t encoders_latch(void);

/* Carry what was latched into the counters of 32 bits. At least once in 32,767 counts. */
void encoders_extend(encoder_counts_t latched);

int32_t encoders_cart(void);
int32_t encoders_pole(void);

/* Whether both channels of an encoder changed at once since this was cleared: counts may be missing. */
bool encoders_slipped(void);
void encoders_clear_slip(void);

#endif
