"""What a widget does in the page, without the kernel: copy the code, and tell who cannot see."""

from html import escape

# Copies what stands in the explorer's own .wb-code, and shows it. A page that is neither local nor
# https has no clipboard of the newer kind.
_COPY = """
const box = this.closest('.wb-explorer'), code = box.querySelector('.wb-code pre');
box.classList.add('wb-shows');
const older = () => {
  getSelection().selectAllChildren(code);
  return document.execCommand('copy') ? Promise.resolve() : Promise.reject();
};
const clipboard = navigator.clipboard;
(clipboard ? clipboard.writeText(code.textContent).catch(older) : older())
  .then(() => 'Copied', () => 'Copy it from below').then(told => {
    this.lastElementChild.textContent = told;
    setTimeout(() => { this.lastElementChild.textContent = 'Copy as code'; }, 2000);
  });
"""
# A picture and a slider's handle cannot be given a name from Python.
_NAME = """
const tell = tries => {
  const box = this.closest('.wb-explorer'), image = box && box.querySelector('img.wb-image');
  const handles = box ? [...box.querySelectorAll('.noUi-handle')] : [];
  if (!image || !handles.every(each => each.closest('.widget-inline-hbox').querySelector('label')))
    return tries && setTimeout(tell, 100, tries - 1);
  image.alt = box.querySelector('.wb-alt').textContent;
  for (const slider of box.querySelectorAll('.widget-inline-hbox')) {
    const label = slider.querySelector('label'), ends = slider.querySelectorAll('.noUi-handle');
    if (!label) continue;
    ends.forEach((handle, i) => {
      const end = ends.length > 1 ? [', from', ', to'][i] : '';
      handle.setAttribute('aria-label', label.textContent + end);
      handle.title = label.title;
    });
    const readout = slider.querySelector('.widget-readout');
    if (readout) readout.setAttribute('aria-label', label.textContent + ', to be typed');
  }
};
setTimeout(tell, 0, 50);
"""
_HIDE = ".wb-explorer:not(.wb-shows) .wb-code {display: none} .wb-code pre {white-space: pre-wrap}"

COPY = (
    '<button type="button" class="jupyter-widgets jupyter-button widget-button" style="margin: 0" '
    'title="copy Python text that makes this picture again, and show it below" '
    f'onclick="{escape(_COPY)}"><i class="fa fa-copy center"></i> <span>Copy as code</span>'
    "</button>"
)
CODE = (
    "<pre>{code}</pre><span class='wb-alt' hidden>{alt}</span>"
    + f'<style onload="{escape(_NAME)}">{_HIDE}</style>'.replace("{", "{{").replace("}", "}}")
)
