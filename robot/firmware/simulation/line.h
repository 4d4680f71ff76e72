/*
 * The chip's serial line, and a pseudo-terminal at its other end.
 *
 * It is stricter than simavr: a byte takes the time that it takes on the line, and one that comes while three are unread is
 * lost, as in the chip.
 */
#ifndef LINE_H
#define LINE_H

#include <stdint.h>

#include <simavr/sim_avr.h>

#define FREQUENCY 16000000

/* Open the terminal, and print its name. */
void line_open(avr_t *chip);

/* Bytes that wait on either side. */
void line_exchange(void);

/* The chip has restarted: what was on its way is lost. */
void line_reset(void);

/* Pull the cable. */
void line_unplug(void);

uint32_t line_lost_bytes(void);

/* When the chip had the last byte, on its clock. */
double line_received_s(void);

/* Say what is wrong and end. */
void fail(const char *what);

#endif
