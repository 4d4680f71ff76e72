/* The line to the computer: 8 data bits, no parity, 1 stop bit. */
#ifndef SERIAL_H
#define SERIAL_H

#include <stdbool.h>
#include <stdint.h>

/* Call once, with interrupts off. */
void serial_start(void);

bool serial_has_byte(void);

/* Only if there is one. */
uint8_t serial_read(void);

/* Waits until all of it is on its way. What arrives meanwhile is kept. */
void serial_write(const uint8_t *bytes, uint8_t n);

#endif
