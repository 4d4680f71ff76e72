/*
 * What takes the voltage away: a timer interrupt, every millisecond, that neither the line nor the main loop can hold up.
 *
 * It is the board's clock too.
 */
#ifndef GUARD_H
#define GUARD_H

#include <stdint.h>

/* Bits of STATE that are the guard's. */
#define FLAG_WATCHDOG_EXPIRED 0x02
#define FLAG_FAULT 0x04
#define FLAG_LIMIT_NEGATIVE 0x10
#define FLAG_LIMIT_POSITIVE 0x20

/* Call once, with interrupts off. */
void guard_start(void);

/* 0 V; watchdog cleared, and not running until the next voltage. */
void guard_release(void);

/* A voltage, as motor_steps() gives it. It feeds the watchdog, unless that has expired or there is a fault. */
void guard_drive(int16_t steps, uint16_t watchdog_ms);

uint8_t guard_flags(void);

/* Milliseconds since the start; wraps. One byte, so that it can be read at any time. */
uint8_t guard_milliseconds(void);

/* Call with interrupts off: ticks since that millisecond began, 0 to 249, or more if the next has not been counted yet. */
uint16_t guard_ticks_since(void);

/* Length of such a tick. */
#define TICK_US 4

#endif
