#include "serial.h"

#include "board.h"

/* Double speed: at 16 MHz 1,000,000 baud are exact (115,200 are 2.1 % off, which receivers stand). */
#define DIVIDER ((F_CPU + 4UL * BAUD_RATE) / (8UL * BAUD_RATE))
_Static_assert(DIVIDER >= 1 && DIVIDER <= 4096, "BAUD_RATE cannot be made from 16 MHz");
#define RATE (F_CPU / (8UL * DIVIDER))
_Static_assert(40 * RATE >= 39 * BAUD_RATE && 40 * RATE <= 41 * BAUD_RATE,
               "BAUD_RATE is more than 2.5 % off; take 1000000, 500000, 250000 or 115200");
/* The longest answer, 32 bytes of ten bits, is sent between two resets of the chip's watchdog of 16 ms. */
_Static_assert(BAUD_RATE >= 38400, "BAUD_RATE is so low that an answer takes longer than the chip's watchdog waits");

/*
 * A ring of 256 bytes, whose ends are bytes that wrap by themselves. It is four times as long as the longest frame. A computer
 * that sends more than it holds loses frames; their checksums tell.
 */
volatile uint8_t serial_ring[256] __attribute__((aligned(256), used));
/* Where the interrupt, in interrupts.S, puts the next byte. */
volatile uint8_t serial_head __attribute__((used));
static uint8_t tail;

void serial_start(void)
{
    UCSR0A = 1 << U2X0;
    UCSR0C = (1 << UCSZ01) | (1 << UCSZ00);
    UBRR0 = DIVIDER - 1;
    UCSR0B = (1 << RXEN0) | (1 << TXEN0) | (1 << RXCIE0);
}

bool serial_has_byte(void)
{
    return serial_head != tail;
}

uint8_t serial_read(void)
{
    return serial_ring[tail++];
}

void serial_write(const uint8_t *bytes, uint8_t n)
{
    while (n--) {
        while (!(UCSR0A & (1 << UDRE0)))
            ;
        UDR0 = *bytes++;
    }
}
