#define _GNU_SOURCE
#include "line.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <simavr/avr_uart.h>

/* Of a line of 1,000,000 baud: ten bits. */
#define BYTE_CYCLES 160

DEFINE_FIFO(uint16_t, uart_fifo);

/* Addresses in data memory, the same in both chips. */
enum { UCSR0A = 0xC0, UBRR0 = 0xC4 };

static avr_t *avr;
static avr_uart_t *uart;
/* Both ends of the terminal. */
static int terminal = -1, other_end = -1;
static uint8_t arriving[65536], leaving[65536];
static size_t n_arriving, n_arrived, n_leaving;
static uint32_t n_lost_bytes;
static double received_s;

static void chip_sent(avr_irq_t *irq, uint32_t value, void *param)
{
    if (n_leaving < sizeof(leaving))
        leaving[n_leaving++] = (uint8_t)value;
}

static bool baud_is_right(void)
{
    const uint8_t *data = avr->data;
    uint32_t cycles = ((data[UBRR0] | data[UBRR0 + 1] << 8) + 1) * (data[UCSR0A] & 2 ? 8 : 16);
    return 10 * cycles == BYTE_CYCLES;
}

static avr_cycle_count_t deliver(avr_t *the_avr, avr_cycle_count_t when, void *param)
{
    if (n_arrived == n_arriving) {
        n_arrived = n_arriving = 0;
        return 0;
    }
    uint8_t byte = arriving[n_arrived++];
    /* simavr adds a parity bit that is not there. */
    uart->cycles_per_byte = BYTE_CYCLES;
    if (uart_fifo_get_read_size(&uart->input) >= 3)
        n_lost_bytes++;
    else if (baud_is_right())
        avr_raise_irq(uart->io.irq + UART_IRQ_INPUT, byte);
    received_s = (double)avr->cycle / FREQUENCY;
    return when + BYTE_CYCLES;
}

void line_exchange(void)
{
    if (terminal < 0)
        return;
    size_t sent = 0;
    while (sent < n_leaving) {
        ssize_t n = write(terminal, leaving + sent, n_leaving - sent);
        /* Nobody reads: a board without flow control loses what its buffer does not hold. */
        if (n <= 0)
            break;
        sent += n;
    }
    n_leaving = 0;
    ssize_t n = read(terminal, arriving + n_arriving, sizeof(arriving) - n_arriving);
    if (n > 0) {
        n_arriving += n;
        if (!avr_cycle_timer_status(avr, deliver, NULL))
            avr_cycle_timer_register(avr, BYTE_CYCLES, deliver, NULL);
    }
}

static void open_terminal(void)
{
    terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal))
        fail("no pseudo-terminal");
    /* The computer's end stays open here, so that the terminal outlives a computer that closes its own. */
    other_end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    struct termios settings;
    if (other_end < 0 || tcgetattr(other_end, &settings))
        fail("no pseudo-terminal");
    cfmakeraw(&settings);
    tcsetattr(other_end, TCSANOW, &settings);
    printf("%s\n", ptsname(terminal));
    fflush(stdout);
}

static void find_uart(void)
{
    for (avr_io_t *io = avr->io_port; io; io = io->next)
        if (!strcmp(io->kind, "uart") && ((avr_uart_t *)io)->name == '0')
            uart = (avr_uart_t *)io;
    if (!uart)
        fail("no serial line in this chip");
    uint32_t flags = 0;
    avr_ioctl(avr, AVR_IOCTL_UART_SET_FLAGS('0'), &flags);
    avr_irq_register_notify(uart->io.irq + UART_IRQ_OUTPUT, chip_sent, NULL);
}

void line_open(avr_t *chip)
{
    avr = chip;
    find_uart();
    open_terminal();
}

void line_reset(void)
{
    n_arriving = n_arrived = 0;
}

void line_unplug(void)
{
    close(terminal);
    close(other_end);
    terminal = other_end = -1;
}

uint32_t line_lost_bytes(void)
{
    return n_lost_bytes;
}

double line_received_s(void)
{
    return received_s;
}
