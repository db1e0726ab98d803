The video of ffmpeg, by the command line of the manual page.

  $ command -v ffmpeg >/dev/null || exit 80
  $ . "$TESTDIR/../scene.sh"
  $ dlxctl echo v --count 3 --values 0 2>/dev/null >echo.out &
  $ ffmpeg -v error -f lavfi -i color=red:size=64x48:rate=10:duration=0.3 \
  >   -f rawvideo -pix_fmt rgb24 - </dev/null |
  >   dlxctl pub v --dtype uint8 --shape 48,64,3 --rate 100 --wait 1 - && wait $! && cat echo.out
